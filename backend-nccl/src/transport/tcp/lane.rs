//! The state of a collective under way: how far each direction of each connection is.

use crate::transport::{
    frame::HEADER_BYTES,
    plan::{Piece, Plan, Schedule},
};

/// One direction of one connection: its pieces and how far the current one is.
pub(super) struct Cursor {
    schedule: Schedule,
    pub(super) piece: Option<Piece>,
    pub(super) done: usize,
    /// Bytes of all pieces that have moved.
    moved: usize,
    /// Bytes of the header that have moved.
    pub(super) header: usize,
    /// Whether the socket may have room or bytes: cleared when it ran out, set again by `poll`.
    pub(super) open: bool,
}

impl Cursor {
    /// `announced`: whether a header comes first; a direction without one has no pieces either.
    fn new(mut schedule: Schedule, announced: bool) -> Self {
        let piece = schedule.next();
        let header = if announced { 0 } else { HEADER_BYTES };
        Self { schedule, piece, done: 0, moved: 0, header, open: true }
    }

    /// Counts bytes of the current piece; returns the piece when that completes it.
    pub(super) fn advance(&mut self, count: usize) -> Option<Piece> {
        self.done += count;
        self.moved += count;
        if self.done < self.piece.as_ref()?.range.len() {
            return None;
        }
        self.done = 0;
        std::mem::replace(&mut self.piece, self.schedule.next())
    }

    pub(super) fn finished(&self) -> bool {
        self.header == HEADER_BYTES && self.piece.is_none()
    }
}

/// Both directions of the connection to one peer.
pub(super) struct Lane {
    /// The peer's place in the call.
    pub(super) place: usize,
    /// The index of its connection.
    pub(super) link: usize,
    pub(super) sending: Cursor,
    pub(super) receiving: Cursor,
    pub(super) header: [u8; HEADER_BYTES],
}

impl Lane {
    pub(super) fn new(plan: &Plan, own: usize, place: usize, link: usize) -> Self {
        Self {
            place,
            link,
            sending: Cursor::new(plan.schedule(own, place), plan.announces(own, place)),
            receiving: Cursor::new(plan.schedule(place, own), plan.announces(place, own)),
            header: [0; HEADER_BYTES],
        }
    }

    pub(super) fn finished(&self) -> bool {
        self.sending.finished() && self.receiving.finished()
    }

    /// Bytes that have moved in both directions.
    pub(super) fn moved(&self) -> usize {
        self.sending.moved + self.receiving.moved
    }
}
