//! How far both directions between this rank and one peer are, and the caller's buffers.

use std::{collections::VecDeque, ffi::c_int, iter::Peekable};

use super::transfers::Slab;
use crate::transport::plan::{Piece, Plan, Schedule};

/// A piece that is received: asked for, and then there.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) piece: Piece,
    /// The slab, and where in it the piece begins.
    pub(super) arrived: Option<(Slab, usize)>,
}

/// The state of one peer.
#[derive(Debug)]
pub(super) struct Lane {
    /// Its place among the members.
    pub(super) place: usize,
    /// Its rank in the group.
    pub(super) rank: usize,
    /// Its rank in MPI's world.
    pub(super) world_rank: c_int,
    /// Whether its header has arrived, or none will come.
    pub(super) heard: bool,
    /// Whether this rank's header is on its way, or none will be sent.
    pub(super) introduced: bool,
    /// Pieces to send.
    pub(super) outgoing: Peekable<Schedule>,
    /// Sends that are not complete.
    pub(super) sending: usize,
    /// Pieces to receive that were not asked for yet.
    pub(super) incoming: Peekable<Schedule>,
    /// Pieces that were asked for and not used yet, in order.
    pub(super) due: VecDeque<Due>,
    /// The number of the first of them.
    pub(super) first_due: usize,
    /// Whether the first of them is counted among the versions of the chunk that is folded next.
    pub(super) counted: bool,
    /// Bytes that have moved in both directions.
    pub(super) moved: usize,
}

impl Lane {
    pub(super) fn new(plan: &Plan, own: usize, place: usize, (rank, world_rank): (usize, c_int)) -> Self {
        Self {
            place,
            rank,
            world_rank,
            heard: !plan.announces(place, own),
            introduced: !plan.announces(own, place),
            outgoing: plan.schedule(own, place).peekable(),
            sending: 0,
            incoming: plan.schedule(place, own).peekable(),
            due: VecDeque::new(),
            first_due: 0,
            counted: false,
            moved: 0,
        }
    }

    pub(super) fn finished(&mut self) -> bool {
        self.introduced
            && self.heard
            && self.sending == 0
            && self.outgoing.peek().is_none()
            && self.incoming.peek().is_none()
            && self.due.is_empty()
    }

    /// The first piece that is due and has arrived.
    pub(super) fn front(&self) -> Option<(&Piece, &[u8])> {
        let Due { piece, arrived } = self.due.front()?;
        let (slab, start) = arrived.as_ref()?;
        Some((piece, &slab.bytes()[*start..*start + piece.range.len()]))
    }

    /// Has done with that piece.
    pub(super) fn pop(&mut self) -> Option<Slab> {
        self.counted = false;
        self.first_due += 1;
        self.due.pop_front()?.arrived.map(|(slab, _)| slab)
    }
}
