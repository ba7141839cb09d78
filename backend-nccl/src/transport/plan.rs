//! Which bytes go where: the arithmetic of the pairwise exchange, pure.
//!
//! Every collective is at most two phases between each pair of ranks. In the *scatter* phase a rank sends to each
//! peer the part of its buffer that the peer owns; the owner folds the versions in rank order (or, in a broadcast,
//! keeps the only one). In the *gather* phase the owner sends the finished part to the others, who receive it in place.
//!
//! Why not a ring: a ring adds the ranks' values in an order that depends on the segment an element falls in, so the
//! same gradient in a bucket of another size would get other rounding. Here the order is always rank 0, 1, 2, …, for
//! every element, at the volume of a ring, 2 (n - 1) / n buffers sent per rank (Patarasu and Yuan 2009, the lower bound),
//! and with two hops of latency where a ring has 2 (n - 1).

use std::ops::Range;

use super::Collective;

/// Bytes that move as one unit: large enough that system calls cost nothing, small enough that a chunk is still in the
/// second-level cache when it is folded and sent on. Half and twice the size were slower.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// How many chunks the gather phase trails the scatter phase by on each connection: enough to keep both directions
/// busy while a chunk is folded, and so few that a finished chunk is still in the cache when it is sent.
const LAG: usize = 2;
/// Up to here every rank sends its whole buffer to all: one hop instead of two, for more bytes.
const DIRECT_BYTES: usize = 16 * 1024;

/// The part of `elements` that belongs to `part` of `parts`; sizes differ by one at most, larger ones first.
pub(crate) fn share(elements: usize, parts: usize, part: usize) -> Range<usize> {
    let (size, larger) = (elements / parts, elements % parts);
    let start = part * size + part.min(larger);
    start..start + size + usize::from(part < larger)
}

/// The layout of one collective, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    world_size: usize,
    /// Bytes of the buffer, or of one rank's part where the parts are given.
    bytes: usize,
    element_bytes: usize,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Barrier,
    AllReduceDirect,
    AllReduce,
    ReduceScatter,
    AllGather,
    BroadcastDirect {
        root: usize,
    },
    Broadcast {
        root: usize,
    },
    Gather {
        root: usize,
    },
    Scatter {
        root: usize,
    },
    AllToAll,
    /// What this rank sends to and receives from one place each: place and bytes.
    Exchange {
        own: usize,
        send: Option<(usize, usize)>,
        receive: Option<(usize, usize)>,
    },
}

impl Plan {
    /// The layout for `own` among `world_size`. Roots and peers are places.
    pub(crate) fn new(collective: &Collective<'_>, own: usize, world_size: usize) -> Self {
        let (shape, bytes, element_bytes) = match collective {
            Collective::Barrier => (Shape::Barrier, 0, 1),
            Collective::AllReduce { buffer, dtype, .. } => {
                let direct = buffer.len() <= DIRECT_BYTES;
                let shape = if direct { Shape::AllReduceDirect } else { Shape::AllReduce };
                (shape, buffer.len(), dtype.size_bytes())
            }
            Collective::Broadcast { buffer, dtype, root } => {
                let direct = buffer.len() <= DIRECT_BYTES;
                let root = *root;
                let shape = if direct { Shape::BroadcastDirect { root } } else { Shape::Broadcast { root } };
                (shape, buffer.len(), dtype.size_bytes())
            }
            Collective::AllGather { send, dtype, .. } => (Shape::AllGather, send.len(), dtype.size_bytes()),
            Collective::ReduceScatter { recv, dtype, .. } => {
                (Shape::ReduceScatter, recv.len(), dtype.size_bytes())
            }
            Collective::Gather { send, dtype, root, .. } => {
                (Shape::Gather { root: *root }, send.len(), dtype.size_bytes())
            }
            Collective::Scatter { recv, dtype, root, .. } => {
                (Shape::Scatter { root: *root }, recv.len(), dtype.size_bytes())
            }
            Collective::AllToAll { send, dtype, .. } => {
                (Shape::AllToAll, send.len() / world_size, dtype.size_bytes())
            }
            Collective::Exchange { send, receive, dtype } => {
                let send = send.as_ref().map(|message| (message.to, message.buffer.len()));
                let receive = receive.as_ref().map(|message| (message.from, message.buffer.len()));
                (Shape::Exchange { own, send, receive }, 0, dtype.size_bytes())
            }
        };
        Self { world_size, bytes, element_bytes, shape }
    }

    /// The bytes of the target buffer that `rank` finishes.
    pub(crate) fn own(&self, rank: usize) -> Range<usize> {
        match self.shape {
            Shape::Barrier => 0..0,
            Shape::AllReduceDirect | Shape::ReduceScatter => 0..self.bytes,
            Shape::AllReduce => self.segment(self.world_size, rank),
            Shape::AllGather => rank * self.bytes..(rank + 1) * self.bytes,
            Shape::BroadcastDirect { root } => 0..if rank == root { 0 } else { self.bytes },
            Shape::Broadcast { root } if rank == root => 0..0,
            // The root holds everything already, so the others alone share the work.
            Shape::Broadcast { root } => self.segment(self.world_size - 1, rank - usize::from(rank > root)),
            // Parts come from several ranks and are never one.
            Shape::Gather { .. } | Shape::Scatter { .. } | Shape::AllToAll | Shape::Exchange { .. } => 0..0,
        }
    }

    /// The bytes of the target buffer of `to` where what `from` sends in the scatter phase belongs, unless it is folded.
    pub(crate) fn landing(&self, from: usize, to: usize) -> Range<usize> {
        let part = |index: usize| index * self.bytes..(index + 1) * self.bytes;
        match self.shape {
            Shape::Gather { root } if to == root => part(from),
            Shape::Scatter { root } if from == root => 0..self.bytes,
            Shape::AllToAll => part(from),
            Shape::Gather { .. } | Shape::Scatter { .. } => 0..0,
            Shape::Exchange { .. } => 0..self.scatter(from, to).len(),
            _ => self.own(to),
        }
    }

    /// Whether `own` and `peer` have anything to say to each other.
    pub(crate) fn involves(&self, peer: usize) -> bool {
        match self.shape {
            Shape::Exchange { send, receive, .. } => {
                send.is_some_and(|(to, _)| to == peer) || receive.is_some_and(|(from, _)| from == peer)
            }
            _ => true,
        }
    }

    /// Whether a header goes from `from` to `to`: in a collective both ways, even where no data follows; with a message.
    pub(crate) fn announces(&self, from: usize, to: usize) -> bool {
        match self.shape {
            Shape::Exchange { own, send, receive } => {
                (from == own && send.is_some_and(|(peer, _)| peer == to))
                    || (to == own && receive.is_some_and(|(peer, _)| peer == from))
            }
            _ => true,
        }
    }

    /// The bytes of the source buffer of `from` that it sends to their owner `to`.
    pub(crate) fn scatter(&self, from: usize, to: usize) -> Range<usize> {
        match self.shape {
            Shape::Barrier | Shape::AllGather => 0..0,
            Shape::AllReduceDirect | Shape::AllReduce => self.own(to),
            Shape::ReduceScatter | Shape::AllToAll => to * self.bytes..(to + 1) * self.bytes,
            Shape::Gather { root } => 0..if to == root { self.bytes } else { 0 },
            Shape::Scatter { root } if from == root => to * self.bytes..(to + 1) * self.bytes,
            Shape::Scatter { .. } => 0..0,
            Shape::Exchange { own, send, receive } => {
                let bytes = |message: Option<(usize, usize)>, peer| match message {
                    Some((place, bytes)) if place == peer => bytes,
                    _ => 0,
                };
                0..if from == own { bytes(send, to) } else { 0 }.max(if to == own {
                    bytes(receive, from)
                } else {
                    0
                })
            }
            Shape::BroadcastDirect { root } | Shape::Broadcast { root } => {
                if from == root {
                    self.own(to)
                } else {
                    0..0
                }
            }
        }
    }

    /// The bytes of the target buffer that their owner `from` sends to `to` when they are finished.
    pub(crate) fn gather(&self, from: usize, to: usize) -> Range<usize> {
        match self.shape {
            Shape::Barrier
            | Shape::AllReduceDirect
            | Shape::ReduceScatter
            | Shape::Gather { .. }
            | Shape::Scatter { .. }
            | Shape::AllToAll
            | Shape::Exchange { .. }
            | Shape::BroadcastDirect { .. } => 0..0,
            Shape::AllReduce | Shape::AllGather => self.own(from),
            Shape::Broadcast { root } => {
                if to == root {
                    0..0
                } else {
                    self.own(from)
                }
            }
        }
    }

    /// The order of the pieces on the connection from `from` to `to`.
    pub(crate) fn schedule(&self, from: usize, to: usize) -> Schedule {
        Schedule::new(self.scatter(from, to).len(), self.gather(from, to).len())
    }

    fn segment(&self, parts: usize, part: usize) -> Range<usize> {
        let elements = share(self.bytes / self.element_bytes, parts, part);
        elements.start * self.element_bytes..elements.end * self.element_bytes
    }
}

/// A phase of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Scatter,
    Gather,
}

/// A run of bytes on a connection, relative to the range of its phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) phase: Phase,
    pub(crate) range: Range<usize>,
}

/// The pieces on one connection in one direction, in order: both ends compute it, so the stream needs no framing.
///
/// Piece `k` of the scatter phase waits only for pieces before `k` of other connections (their fold feeds the gather
/// pieces sent earlier), so no set of ranks can wait in a circle.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    scatter: usize,
    gather: usize,
    step: usize,
    gather_is_next: bool,
}

impl Schedule {
    fn new(scatter: usize, gather: usize) -> Self {
        Self { scatter, gather, step: 0, gather_is_next: false }
    }
}

impl Iterator for Schedule {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let gather_steps = if self.gather == 0 { 0 } else { self.gather.div_ceil(CHUNK_BYTES) + LAG };
        let steps = self.scatter.div_ceil(CHUNK_BYTES).max(gather_steps);
        while self.step < steps {
            let (phase, index, total) = if self.gather_is_next {
                self.step += 1;
                (Phase::Gather, (self.step - 1).checked_sub(LAG), self.gather)
            } else {
                (Phase::Scatter, Some(self.step), self.scatter)
            };
            self.gather_is_next = !self.gather_is_next;
            if let Some(start) = index.map(|index| index * CHUNK_BYTES)
                && start < total
            {
                return Some(Piece { phase, range: start..total.min(start + CHUNK_BYTES) });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{DType, ReduceOp};

    #[test]
    fn shares_cover_everything_once_in_order_and_differ_by_one_at_most() {
        for elements in 0..40 {
            for parts in 1..9 {
                let mut end = 0;
                let sizes: Vec<usize> = (0..parts)
                    .map(|part| {
                        let range = share(elements, parts, part);
                        assert_eq!(range.start, end);
                        end = range.end;
                        range.len()
                    })
                    .collect();
                assert_eq!(end, elements);
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn a_schedule_covers_both_phases_once_with_the_gather_trailing() {
        for (scatter, gather) in
            [(0, 0), (5, 0), (0, 5), (10, 9), (9, 10)].map(|(s, g)| (s * 100_000, g * 100_000))
        {
            let pieces: Vec<Piece> = Schedule::new(scatter, gather).collect();
            for (phase, total) in [(Phase::Scatter, scatter), (Phase::Gather, gather)] {
                let ranges: Vec<_> =
                    pieces.iter().filter(|p| p.phase == phase).map(|p| p.range.clone()).collect();
                let end = ranges.iter().fold(0, |end, range| {
                    assert!(range.start == end && !range.is_empty() && range.len() <= CHUNK_BYTES);
                    range.end
                });
                assert_eq!(end, total);
            }
        }
    }

    #[test]
    fn a_rank_sends_at_most_the_volume_of_a_ring() {
        let (world_size, count) = (4, 3_000_001);
        let mut buffer = vec![0u8; count * 4];
        let collective = Collective::AllReduce { buffer: &mut buffer, dtype: DType::F32, op: ReduceOp::Sum };
        for rank in 0..world_size {
            let plan = Plan::new(&collective, rank, world_size);
            let sent: usize = (0..world_size)
                .filter(|peer| *peer != rank)
                .map(|peer| plan.scatter(rank, peer).len() + plan.gather(rank, peer).len())
                .sum();
            let ring = 2 * (world_size - 1) * (count * 4).div_ceil(world_size);
            assert!(sent <= ring + 4 * world_size, "{sent} > {ring}");
            assert!(plan.own(rank).start.is_multiple_of(4));
        }
    }

    #[test]
    fn a_broadcast_leaves_its_root_once_and_reaches_every_other_rank_whole() {
        let mut buffer = vec![0u8; 1_000_000];
        let collective = Collective::Broadcast { buffer: &mut buffer, dtype: DType::U8, root: 1 };
        let plan = Plan::new(&collective, 0, 4);
        let from_root: usize = [0, 2, 3].iter().map(|to| plan.scatter(1, *to).len()).sum();
        assert_eq!(from_root, 1_000_000);
        for to in [0, 2, 3] {
            let arrives: usize = (0..4)
                .filter(|from| *from != to)
                .map(|from| plan.scatter(from, to).len() + plan.gather(from, to).len())
                .sum();
            assert_eq!(arrives, 1_000_000);
        }
        assert_eq!((0..4).map(|from| plan.gather(from, 1).len()).sum::<usize>(), 0);
    }
}
