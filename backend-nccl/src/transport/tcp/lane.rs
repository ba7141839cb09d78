//! The state of a collective under way: how far each direction of each connection is.

use super::header::{self, CHECKSUM_BYTES};
use crate::transport::plan::{Piece, Plan, Schedule};

/// One direction of one connection: its pieces and how far the current one is.
pub(super) struct Cursor {
    schedule: Schedule,
    pub(super) piece: Option<Piece>,
    pub(super) done: usize,
    /// Bytes of all pieces that have moved.
    moved: usize,
    /// Bytes of the header that have moved.
    pub(super) header: usize,
    /// The checksum of what has moved of the current piece, where pieces carry one.
    sum: Option<u32>,
    /// The checksum behind the piece as it travels, and how much of it has moved, once the piece has.
    trailer: [u8; CHECKSUM_BYTES],
    trailed: Option<usize>,
    /// Whether the socket may have room or bytes: cleared when it ran out, set again by `poll`.
    pub(super) open: bool,
}

impl Cursor {
    /// `announced`: whether a header comes first; a direction without one has no pieces either.
    fn new(mut schedule: Schedule, announced: bool, checksums: bool) -> Self {
        let piece = schedule.next();
        let header = if announced { 0 } else { header::BYTES };
        Self {
            schedule,
            piece,
            done: 0,
            moved: 0,
            header,
            sum: checksums.then_some(0),
            trailer: [0; CHECKSUM_BYTES],
            trailed: None,
            open: true,
        }
    }

    /// What is left to send of the checksum behind the current piece, once that has moved.
    pub(super) fn trailer(&self) -> Option<&[u8]> {
        self.trailed.map(|moved| &self.trailer[moved..])
    }

    /// Where the rest of the checksum goes.
    pub(super) fn trailer_mut(&mut self) -> Option<&mut [u8]> {
        self.trailed.map(|moved| &mut self.trailer[moved..])
    }

    /// The checksum of what has moved of the current piece, to be continued and put back; `None` where there is none, or
    /// where it is the checksum itself that moves.
    pub(super) fn sum(&self) -> Option<u32> {
        self.sum.filter(|_| self.trailed.is_none())
    }

    pub(super) fn set_sum(&mut self, sum: Option<u32>) {
        self.sum = sum.or(self.sum);
    }

    /// Whether the checksum that came behind the current piece is the one of what came before it; true until all of it
    /// has come.
    pub(super) fn is_sound(&self) -> bool {
        self.trailed != Some(CHECKSUM_BYTES) || self.sum == Some(u32::from_le_bytes(self.trailer))
    }

    /// Counts bytes of the current piece, or of the checksum behind it; whether that completes them.
    pub(super) fn advance(&mut self, count: usize) -> bool {
        let Some(piece) = &self.piece else { return false };
        if let Some(moved) = &mut self.trailed {
            *moved += count;
            return *moved == CHECKSUM_BYTES;
        }
        self.done += count;
        self.moved += count;
        let complete = self.done == piece.range.len();
        match self.sum {
            Some(sum) if complete => {
                // What is received is written over it.
                self.trailer = sum.to_le_bytes();
                self.trailed = Some(0);
                false
            }
            _ => complete,
        }
    }

    /// Takes the current piece, which is complete, and goes on to the next.
    pub(super) fn next(&mut self) -> Option<Piece> {
        self.done = 0;
        self.trailed = None;
        self.sum = self.sum.map(|_| 0);
        std::mem::replace(&mut self.piece, self.schedule.next())
    }

    pub(super) fn finished(&self) -> bool {
        self.header == header::BYTES && self.piece.is_none()
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
    pub(super) header: [u8; header::BYTES],
}

impl Lane {
    pub(super) fn new(plan: &Plan, own: usize, place: usize, link: usize, checksums: bool) -> Self {
        Self {
            place,
            link,
            sending: Cursor::new(plan.schedule(own, place), plan.announces(own, place), checksums),
            receiving: Cursor::new(plan.schedule(place, own), plan.announces(place, own), checksums),
            header: [0; header::BYTES],
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
