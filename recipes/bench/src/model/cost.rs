//! What an all-reduce costs, by Hockney's model of a message, `α + bytes / bandwidth` (1994), and an overhead for every
//! further message that a rank handles at the same time, as in LogP (Culler et al. 1993).
//!
//! With n ranks and S bytes. Adding up the numbers themselves is not counted: it overlaps.

/// A connection between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Link {
    /// α: seconds until the first byte of a message is there, and the other side acts on it.
    pub(crate) latency: f64,
    /// o: seconds that a rank is busy with each message that it sends and receives besides.
    pub(crate) overhead: f64,
    /// Bytes a second that a rank sends, and receives at the same time.
    pub(crate) bandwidth: f64,
}

/// Up to here `transport/plan.rs` sends every buffer whole to every rank, in one hop.
const DIRECT_BYTES: f64 = 16.0 * 1024.0;

/// How many buffers a rank sends at least: `2 (n - 1) / n`, the lower bound of Patarasu and Yuan (2009).
pub(crate) fn ring_factor(ranks: usize) -> f64 {
    2.0 * (ranks as f64 - 1.0) / ranks as f64
}

impl Link {
    fn volume(&self, ranks: usize, bytes: f64) -> f64 {
        ring_factor(ranks) * bytes / self.bandwidth
    }

    /// This crate's exchange: each rank sends to all others at once, `2 (α + (n - 2) o) + 2 (n - 1) / n S / B`.
    ///
    /// A short buffer goes to all at once: `α + (n - 2) o + (n - 1) S / B`.
    pub(crate) fn pairwise(&self, ranks: usize, bytes: f64) -> f64 {
        let hop = self.latency + (ranks.max(2) - 2) as f64 * self.overhead;
        if bytes <= DIRECT_BYTES {
            return hop + (ranks as f64 - 1.0) * bytes / self.bandwidth;
        }
        2.0 * hop + self.volume(ranks, bytes)
    }

    /// A ring: `2 (n - 1) α + 2 (n - 1) / n S / B`.
    pub(crate) fn ring(&self, ranks: usize, bytes: f64) -> f64 {
        2.0 * (ranks as f64 - 1.0) * self.latency + self.volume(ranks, bytes)
    }

    /// Halving and doubling (Rabenseifner 2004), as MPI libraries have it: `2 log2 n α + 2 (n - 1) / n S / B`.
    pub(crate) fn halving(&self, ranks: usize, bytes: f64) -> f64 {
        2.0 * levels(ranks) * self.latency + self.volume(ranks, bytes)
    }

    /// A pipelined tree, up and down: `2 log2 n α + 2 S / B`.
    pub(crate) fn tree(&self, ranks: usize, bytes: f64) -> f64 {
        2.0 * levels(ranks) * self.latency + 2.0 * bytes / self.bandwidth
    }
}

fn levels(ranks: usize) -> f64 {
    (ranks as f64).log2().ceil()
}

/// A ring through all GPUs of all hosts, as NCCL makes it: `2 (n - h) α_in + 2 (h - 1) α_out` and the slower link.
pub(crate) fn ring_of_hosts(inside: &Link, between: &Link, hosts: usize, per_host: usize, bytes: f64) -> f64 {
    let ranks = hosts * per_host;
    // As many rings as GPUs, each through its own network card.
    let out = between.bandwidth * per_host as f64;
    let slower = Link { bandwidth: inside.bandwidth.min(out), ..*inside };
    let hops = 2.0 * (ranks - hosts) as f64 * inside.latency + 2.0 * (hosts as f64 - 1.0) * between.latency;
    hops + slower.volume(ranks, bytes)
}

/// In three steps: each GPU gets the sum of a part inside its host, all-reduces it with those of the other hosts that have
/// the same part, and the parts are gathered inside. `between` is what one GPU has.
pub(crate) fn by_parts(
    inside: &Link,
    all_reduce: impl Fn(usize, f64) -> f64,
    hosts: usize,
    per_host: usize,
    bytes: f64,
) -> f64 {
    let local = 2.0 * inside.latency + inside.volume(per_host, bytes);
    local + all_reduce(hosts, bytes / per_host as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency: 10e-6, overhead: 1e-6, bandwidth: 1e9 };

    #[test]
    fn two_ranks_cost_the_same_by_pairs_in_a_ring_and_by_halving() {
        let bytes = 26e6;
        // 2 hops of 10 µs and one buffer at 1 GB/s.
        for seconds in [LINK.pairwise(2, bytes), LINK.ring(2, bytes), LINK.halving(2, bytes)] {
            assert!((seconds - 0.026_02).abs() < 1e-12, "{seconds}");
        }
        assert!((LINK.tree(2, bytes) - 0.052_02).abs() < 1e-12);
    }

    #[test]
    fn a_short_buffer_takes_one_hop_and_a_long_one_two() {
        let expected = 10e-6 + 2.0 * 1e-6 + 3.0 * 1024.0 / 1e9;
        assert!((LINK.pairwise(4, 1024.0) - expected).abs() < 1e-15);
        let expected = 2.0 * 12e-6 + 1.5 * 32_768.0 / 1e9;
        assert!((LINK.pairwise(4, 32_768.0) - expected).abs() < 1e-15);
    }

    #[test]
    fn a_ring_pays_its_latency_for_every_rank_and_a_tree_for_every_level() {
        assert!((LINK.ring(1000, 0.0) - 1998.0 * 10e-6).abs() < 1e-12);
        assert!((LINK.halving(1000, 0.0) - 20.0 * 10e-6).abs() < 1e-12);
        assert!((LINK.tree(1024, 0.0) - 20.0 * 10e-6).abs() < 1e-12);
    }

    #[test]
    fn among_many_ranks_the_exchange_by_pairs_loses_to_a_tree_where_buffers_are_short() {
        // 998 messages of 1 µs on each of the ways are more than 20 hops of 10 µs; 102 MB hide both.
        assert!(LINK.pairwise(1000, 100e3) > LINK.halving(1000, 100e3) * 3.0);
        assert!(LINK.pairwise(1000, 102e6) < LINK.halving(1000, 102e6) * 1.01);
    }

    #[test]
    fn the_volume_of_a_rank_grows_from_one_buffer_towards_two() {
        assert_eq!([2, 4, 8].map(ring_factor), [1.0, 1.5, 1.75]);
        assert!(ring_factor(1000) < 2.0);
    }

    #[test]
    fn many_network_cards_a_host_leave_the_ring_to_the_slower_of_both_links() {
        let inside = Link { latency: 0.0, overhead: 0.0, bandwidth: 400e9 };
        let between = Link { latency: 0.0, overhead: 0.0, bandwidth: 25e9 };
        let seconds = ring_of_hosts(&inside, &between, 8, 8, 200e9);
        assert!((seconds - ring_factor(64)).abs() < 1e-12);
        // By parts: 7/8 x 2 of the buffer inside, then an eighth of it between hosts.
        let seconds = by_parts(&inside, |n, bytes| between.ring(n, bytes), 8, 8, 400e9);
        assert!((seconds - (1.75 + 1.75 * 50e9 / 25e9)).abs() < 1e-9);
    }
}
