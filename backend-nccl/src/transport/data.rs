//! The caller's buffers and what has become of them.

use super::{
    Collective, DType, ReduceOp,
    buffers::Buffers,
    members::Members,
    plan::{Phase, Piece, Plan},
    reduce::fold,
};

/// The bytes of one collective on this rank.
pub(crate) struct Data<'a> {
    pub(super) plan: Plan,
    pub(super) own: usize,
    pub(super) reduction: Option<(DType, ReduceOp)>,
    pub(super) buffers: Buffers<'a>,
    /// Bytes of this rank's own part that are final and may be sent on.
    pub(super) ready: usize,
}

impl<'a> Data<'a> {
    pub(super) fn new(collective: Collective<'a>, among: &Members) -> Self {
        let reduction = collective.reduction();
        let (own, members) = (among.own(), among.len());
        let plan = Plan::new(&collective, own, members);
        let ready = if let Collective::AllGather { send, .. } = &collective { send.len() } else { 0 };
        Self { plan, own, reduction, buffers: Buffers::new(collective, own, members), ready }
    }

    /// Whether a piece that arrives is one version of several.
    pub(super) fn is_folded(&self, piece: &Piece) -> bool {
        piece.phase == Phase::Scatter && self.reduction.is_some()
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
