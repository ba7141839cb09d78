//! Pieces that move whole, as messages do.

use crate::transport::{
    data::Data,
    plan::{Phase, Piece},
};

impl Data<'_> {
    /// The next piece for this member, if it is there to be sent.
    pub(super) fn payload(&self, piece: &Piece, to: usize) -> Option<&[u8]> {
        let (start, end) = (piece.range.start, piece.range.end);
        match piece.phase {
            Phase::Scatter => {
                let base = self.plan.scatter(self.own, to).start;
                Some(&self.buffers.source()[base + start..base + end])
            }
            Phase::Gather => {
                let base = self.plan.gather(self.own, to).start;
                (end <= self.ready).then(|| &self.buffers.target()[base + start..base + end])
            }
        }
    }

    /// Puts a piece where it belongs.
    pub(super) fn place(&mut self, piece: &Piece, from: usize, bytes: &[u8]) {
        let base = match piece.phase {
            Phase::Scatter => self.plan.landing(from, self.own).start,
            Phase::Gather => self.plan.gather(from, self.own).start,
        };
        self.buffers.target_mut()[base + piece.range.start..base + piece.range.end].copy_from_slice(bytes);
        if piece.phase == Phase::Scatter {
            self.ready = piece.range.end;
        }
    }
}
