//! Several hosts with several ranks on some: the sum within each host first, then between hosts.
//!
//! A *rail* joins one rank of each host: rail `j` their `j`-th ranks, as many rails as the smallest host has ranks. An
//! all-reduce has three steps. Each host reduces the whole buffer among its ranks; rail `j` reduces share `j` of it between the
//! hosts; and each host passes the shares on to all of its ranks. So a byte crosses the network once for each host and
//! not for each rank, and all ranks of a host that have a rail send at once.
//!
//! Values are summed in rank order within a host and then in the order of the hosts, that of their first ranks: every rank
//! gets the same bits, which can differ in the last place from those of a transport that adds all ranks in one order. A mean
//! is divided once, at the end. Sums, means and products of f16 and bf16 are formed in f32 on the whole way, at twice the
//! bytes, and rounded once before they are passed on: the mean of values in range is in range. Collectives that reduce nothing on the way, and messages, go between all ranks as they
//! would without hosts; so does reduce-scatter, whose parts differ from rank to rank.

mod divide;
mod wide;

use std::time::Duration;

use super::{
    Buffer, Call, Collective, DType, ReduceOp, choose::Hosts, control::Control, engine::Engine,
    members::Members, plan::share,
};
use crate::failure::Failure;

/// Up to here one rail carries all: more would cost more messages than they save time.
const ONE_RAIL_BYTES: usize = 16 * 1024;
/// How much longer than its call each step may wait than the one before it, at most. Who waits for a rank that waits itself
/// must not be the first to give up, or it would name the wrong rank.
const STEP_GRACE: Duration = Duration::from_secs(1);

/// Which ranks this one works with.
#[derive(Debug)]
struct Layout {
    world_size: usize,
    /// The ranks of this host.
    local: Members,
    /// The number of this host.
    host: usize,
    /// The host and the place on it of each rank.
    places: Vec<(usize, usize)>,
    /// How many rails there are.
    rails: usize,
    /// The ranks of this rank's rail, one of each host; `None` without one.
    rail: Option<Members>,
}

impl Layout {
    fn new(hosts: &Hosts, rank: usize) -> Self {
        let ranks = hosts.ranks();
        let rail_of =
            |place: usize| ranks.iter().map(|ranks| ranks.get(place).copied()).collect::<Option<Vec<_>>>();
        // Members are in rank order. A rail on which that is not the order of the hosts would add in another order than
        // the first one, where it is.
        let rails = (0..).map_while(|place| rail_of(place).filter(|rail| rail.is_sorted())).count();
        let host = hosts.of_rank(rank);
        let local = Members::new(ranks[host].clone(), rank).expect("a rank is on its host");
        let rail = (local.own() < rails).then(|| rail_of(local.own())).flatten();
        let rail = rail.and_then(|ranks| Members::new(ranks, rank));
        let mut places = vec![(0, 0); ranks.iter().map(Vec::len).sum()];
        for (host, ranks) in ranks.iter().enumerate() {
            ranks.iter().enumerate().for_each(|(place, rank)| places[*rank] = (host, place));
        }
        Self { world_size: places.len(), local, host, places, rails, rail }
    }

    /// How many rails carry so many bytes.
    fn rails_for(&self, bytes: usize) -> usize {
        if bytes <= ONE_RAIL_BYTES { 1 } else { self.rails }
    }

    /// This rank's rail, if it is one of the first `rails`, and its number.
    fn rail(&self, rails: usize) -> Option<(usize, &Members)> {
        self.rail.as_ref().map(|rail| (self.local.own(), rail)).filter(|(number, _)| *number < rails)
    }
}

/// An engine within each host and one between all ranks.
#[derive(Debug)]
pub(super) struct Layered {
    layout: Layout,
    /// Joins the ranks of this host; without one the engine between all ranks does.
    local: Option<Box<dyn Engine>>,
    across: Box<dyn Engine>,
}

/// What the steps of one collective share.
#[derive(Clone, Copy)]
struct Step<'a> {
    layered: &'a Layered,
    control: &'a Control,
    call: Call,
}

impl Layered {
    pub(super) fn new(
        hosts: &Hosts,
        rank: usize,
        local: Option<Box<dyn Engine>>,
        across: Box<dyn Engine>,
    ) -> Self {
        Self { layout: Layout::new(hosts, rank), local, across }
    }
}

impl Engine for Layered {
    fn name(&self) -> &'static str {
        "layered"
    }

    fn run(
        &self,
        control: &Control,
        among: &Members,
        call: Call,
        collective: Collective<'_>,
    ) -> Result<(), Failure> {
        let part_of = Some(collective.signature(call.sequence));
        let step = Step { layered: self, control, call: Call { part_of, ..call } };
        match collective {
            _ if among.len() < self.layout.world_size => self.across.run(control, among, call, collective),
            Collective::AllReduce { buffer, dtype, op } => step.all_reduce(buffer, dtype, op),
            Collective::Broadcast { buffer, dtype, root } => step.broadcast(buffer, dtype, root),
            Collective::Barrier => step.barrier(),
            collective => self.across.run(control, among, call, collective),
        }
    }

    fn allocate(&self, len_bytes: usize) -> Option<Buffer> {
        self.local.as_ref().unwrap_or(&self.across).allocate(len_bytes)
    }

    fn shutdown(&self) {
        self.across.shutdown();
        self.local.iter().for_each(|local| local.shutdown());
    }
}

impl Step<'_> {
    fn all_reduce(self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<(), Failure> {
        let rails = self.layered.layout.rails_for(buffer.len());
        if wide::needs_width(dtype, op) {
            let mut sums = wide::widen(dtype, buffer);
            if let Some(number) = self.reduce(&mut sums, DType::F32, op, rails)? {
                let sums = &sums[bytes_of(sums.len(), DType::F32, rails, number)];
                let part = bytes_of(buffer.len(), dtype, rails, number);
                wide::narrow(dtype, sums, &mut buffer[part]);
            }
        } else {
            self.reduce(buffer, dtype, op, rails)?;
        }
        self.pass_on(buffer, dtype, rails)
    }

    /// Reduces the share of this rank's rail over all ranks, and returns its number; `None` without one.
    fn reduce(
        self,
        buffer: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        rails: usize,
    ) -> Result<Option<usize>, Failure> {
        let layout = &self.layered.layout;
        let partial = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.local(0, Collective::AllReduce { buffer: &mut *buffer, dtype, op: partial })?;
        let Some((number, rail)) = layout.rail(rails) else { return Ok(None) };
        let part = bytes_of(buffer.len(), dtype, rails, number);
        let part = &mut buffer[part];
        self.across(rail, Collective::AllReduce { buffer: &mut *part, dtype, op: partial })?;
        if op == ReduceOp::Mean {
            divide::divide(dtype, part, layout.world_size);
        }
        Ok(Some(number))
    }

    fn broadcast(self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<(), Failure> {
        let layout = &self.layered.layout;
        let rails = layout.rails_for(buffer.len());
        let (root_host, root_place) = layout.places[root];
        let is_at_root = layout.host == root_host;
        if is_at_root {
            self.local(0, Collective::Broadcast { buffer: &mut *buffer, dtype, root: root_place })?;
        }
        if let Some((number, rail)) = layout.rail(rails) {
            let part = bytes_of(buffer.len(), dtype, rails, number);
            let part = &mut buffer[part];
            self.across(rail, Collective::Broadcast { buffer: part, dtype, root: root_host })?;
        }
        if is_at_root { Ok(()) } else { self.pass_on(buffer, dtype, rails) }
    }

    fn barrier(self) -> Result<(), Failure> {
        self.local(0, Collective::Barrier)?;
        if let Some((_, rail)) = self.layered.layout.rail(1) {
            self.across(rail, Collective::Barrier)?;
        }
        self.local(2, Collective::Barrier)
    }

    /// Gives all ranks of this host the shares of the rails.
    fn pass_on(self, buffer: &mut [u8], dtype: DType, rails: usize) -> Result<(), Failure> {
        for root in 0..rails {
            let part = bytes_of(buffer.len(), dtype, rails, root);
            let part = &mut buffer[part];
            self.local(2, Collective::Broadcast { buffer: part, dtype, root })?;
        }
        Ok(())
    }

    /// One step within this host.
    fn local(self, step: u32, collective: Collective<'_>) -> Result<(), Failure> {
        let Layered { layout, local, across } = self.layered;
        if layout.local.len() == 1 {
            return Ok(());
        }
        let engine = local.as_ref().unwrap_or(across);
        engine.run(self.control, &layout.local, self.call_of(step), collective)
    }

    /// The step between hosts.
    fn across(self, rail: &Members, collective: Collective<'_>) -> Result<(), Failure> {
        self.layered.across.run(self.control, rail, self.call_of(1), collective)
    }

    fn call_of(self, step: u32) -> Call {
        let grace = (self.call.deadline.limit() / 8).min(STEP_GRACE) * step;
        Call { deadline: self.call.deadline.later(grace), ..self.call }
    }
}

/// The bytes of share `number` of `rails`.
fn bytes_of(len: usize, dtype: DType, rails: usize, number: usize) -> std::ops::Range<usize> {
    let size = dtype.size_bytes();
    let elements = share(len / size, rails, number);
    elements.start * size..elements.end * size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts(hosts: &[&[usize]]) -> Vec<Layout> {
        let hosts = Hosts::new(hosts.iter().map(|ranks| ranks.to_vec()).collect());
        let ranks = hosts.ranks().iter().map(Vec::len).sum();
        (0..ranks).map(|rank| Layout::new(&hosts, rank)).collect()
    }

    /// Each rank's host, its ranks, and its rail.
    type Place = (usize, Vec<usize>, Option<Vec<usize>>);

    fn places(layouts: &[Layout]) -> Vec<Place> {
        let rail = |layout: &Layout| layout.rail.as_ref().map(|rail| rail.ranks().to_vec());
        layouts.iter().map(|layout| (layout.host, layout.local.ranks().to_vec(), rail(layout))).collect()
    }

    #[test]
    fn there_are_as_many_rails_as_the_smallest_host_has_ranks() {
        let even = layouts(&[&[0, 1], &[2, 3]]);
        assert_eq!(even[0].rails, 2);
        let (left, right) = (vec![0, 1], vec![2, 3]);
        assert_eq!(
            places(&even),
            [
                (0, left.clone(), Some(vec![0, 2])),
                (0, left, Some(vec![1, 3])),
                (1, right.clone(), Some(vec![0, 2])),
                (1, right, Some(vec![1, 3])),
            ]
        );
        let uneven = layouts(&[&[0, 1, 2], &[3]]);
        assert_eq!(uneven[0].rails, 1);
        let rails: Vec<_> = places(&uneven).into_iter().map(|place| place.2).collect();
        assert_eq!(rails, [Some(vec![0, 3]), None, None, Some(vec![0, 3])]);
    }

    #[test]
    fn a_rail_that_would_add_the_hosts_in_another_order_is_none() {
        let crossed = layouts(&[&[0, 3], &[1, 2]]);
        assert!(crossed.iter().all(|layout| layout.rails == 1));
        assert_eq!(crossed[0].rail.as_ref().map(Members::ranks), Some([0, 1].as_slice()));
        assert_eq!(crossed[3].rail, None);
        assert_eq!(layouts(&[&[0, 2], &[1, 3]])[3].rails, 2);
    }

    #[test]
    fn a_short_buffer_takes_one_rail_and_the_shares_of_a_long_one_cover_it() {
        let layout = &layouts(&[&[0, 1], &[2, 3]])[1];
        assert_eq!((layout.rails_for(ONE_RAIL_BYTES), layout.rails_for(ONE_RAIL_BYTES + 1)), (1, 2));
        assert!(layout.rail(1).is_none() && layout.rail(2).is_some_and(|(number, _)| number == 1));
        assert_eq!(bytes_of(28, DType::F32, 2, 0), 0..16);
        assert_eq!(bytes_of(28, DType::F32, 2, 1), 16..28);
        assert_eq!(bytes_of(4, DType::F32, 2, 1), 4..4);
    }
}
