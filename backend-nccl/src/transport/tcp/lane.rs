//! The state of a collective under way: its buffers, and how far each direction of each connection is.

use crate::transport::{
    frame::HEADER_BYTES,
    plan::{Piece, Plan, Schedule},
};

/// The caller's buffers.
pub(super) enum Buffers<'a> {
    InPlace(&'a mut [u8]),
    Apart { source: &'a [u8], target: &'a mut [u8] },
}

impl Buffers<'_> {
    pub(super) fn source(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { source, .. } => source,
        }
    }

    pub(super) fn target(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }

    pub(super) fn target_mut(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }
}

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
    fn new(mut schedule: Schedule) -> Self {
        let piece = schedule.next();
        Self { schedule, piece, done: 0, moved: 0, header: 0, open: true }
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

/// Both directions of one connection.
pub(super) struct Lane {
    pub(super) sending: Cursor,
    pub(super) receiving: Cursor,
    pub(super) header: [u8; HEADER_BYTES],
}

impl Lane {
    pub(super) fn new(plan: &Plan, rank: usize, peer: usize) -> Self {
        Self {
            sending: Cursor::new(plan.schedule(rank, peer)),
            receiving: Cursor::new(plan.schedule(peer, rank)),
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
