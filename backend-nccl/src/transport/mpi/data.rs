//! The caller's buffers and what has become of them.

use crate::transport::{
    Collective, DType, ReduceOp,
    buffers::Buffers,
    members::Members,
    plan::{Phase, Piece, Plan},
    reduce::fold,
};

/// The bytes of one collective on this rank.
pub(super) struct Data<'a> {
    pub(super) plan: Plan,
    own: usize,
    reduction: Option<(DType, ReduceOp)>,
    buffers: Buffers<'a>,
    /// Bytes of this rank's own part that are final and may be sent on.
    pub(super) ready: usize,
}

impl<'a> Data<'a> {
    pub(super) fn new(
        collective: Collective<'a>,
        reduction: Option<(DType, ReduceOp)>,
        among: &Members,
    ) -> Self {
        let (own, members) = (among.own(), among.len());
        let plan = Plan::new(&collective, own, members);
        let ready = if let Collective::AllGather { send, .. } = &collective { send.len() } else { 0 };
        Self { plan, own, reduction, buffers: Buffers::new(collective, own, members), ready }
    }

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

    /// Whether a piece that arrives is one version of several.
    pub(super) fn is_folded(&self, piece: &Piece) -> bool {
        piece.phase == Phase::Scatter && self.reduction.is_some()
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

    /// Folds the chunk at `ready`: the versions of the other members, in their order, with this rank's.
    pub(super) fn fold(&mut self, versions: &[&[u8]]) {
        let Some(((dtype, op), len)) = self.reduction.zip(versions.first().map(|version| version.len()))
        else {
            return;
        };
        let own = self.plan.own(self.own).start + self.ready;
        if let Buffers::Apart { source, target } = &mut self.buffers {
            let start = self.plan.scatter(self.own, self.own).start + self.ready;
            target[own..own + len].copy_from_slice(&source[start..start + len]);
        }
        fold(dtype, op, &mut self.buffers.target_mut()[own..own + len], self.own, versions);
        self.ready += len;
    }
}
