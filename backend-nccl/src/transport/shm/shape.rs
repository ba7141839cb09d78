//! Which bytes of whose buffer go to whom: the arithmetic of a collective whose ranks read each other's memory.
//!
//! Ranks are places among those that take part.

use std::ops::Range;

use super::layout::INLINE_BYTES;
use crate::transport::{Collective, DType, ReduceOp, plan::share};

/// The layout of one collective, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) ranks: usize,
    /// How the pieces that a rank reads are versions of one; without it each has its own place.
    pub(super) reduction: Option<(DType, ReduceOp)>,
    kind: Kind,
    /// Bytes of the buffer, or of one rank's part where there are parts.
    bytes: usize,
    element_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    /// Everybody folds everything: one hop, for more bytes.
    Direct,
    /// Everybody folds its share for all.
    AllReduce,
    ReduceScatter,
    AllGather,
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
}

impl Shape {
    pub(super) fn new(collective: &Collective<'_>, ranks: usize) -> Self {
        let (kind, bytes, dtype) = match collective {
            Collective::AllReduce { buffer, dtype, .. } => {
                let kind = if buffer.len() <= INLINE_BYTES { Kind::Direct } else { Kind::AllReduce };
                (kind, buffer.len(), *dtype)
            }
            Collective::ReduceScatter { recv, dtype, .. } => (Kind::ReduceScatter, recv.len(), *dtype),
            Collective::AllGather { send, dtype, .. } => (Kind::AllGather, send.len(), *dtype),
            Collective::Broadcast { buffer, dtype, root } => {
                (Kind::Broadcast { root: *root }, buffer.len(), *dtype)
            }
            Collective::Gather { send, dtype, root, .. } => {
                (Kind::Gather { root: *root }, send.len(), *dtype)
            }
            Collective::Scatter { recv, dtype, root, .. } => {
                (Kind::Scatter { root: *root }, recv.len(), *dtype)
            }
            Collective::AllToAll { send, dtype, .. } => (Kind::AllToAll, send.len() / ranks, *dtype),
            // Messages have no common layout.
            Collective::Barrier | Collective::Exchange { .. } => (Kind::Nothing, 0, DType::U8),
        };
        let reduction = collective.reduction();
        Self { ranks, reduction, kind, bytes, element_bytes: dtype.size_bytes() }
    }

    /// The bytes of the source of `from` that `to` reads.
    pub(super) fn piece(&self, from: usize, to: usize) -> Range<usize> {
        let part = |index: usize| index * self.bytes..(index + 1) * self.bytes;
        let all_if = |condition: bool| 0..if condition { self.bytes } else { 0 };
        match self.kind {
            Kind::Nothing => 0..0,
            Kind::Direct | Kind::AllGather => 0..self.bytes,
            Kind::AllReduce => self.share(to),
            Kind::ReduceScatter | Kind::AllToAll => part(to),
            // The root has it already.
            Kind::Broadcast { root } => all_if(from == root && to != root),
            Kind::Gather { root } => all_if(to == root),
            Kind::Scatter { root } if from == root => part(to),
            Kind::Scatter { .. } => 0..0,
        }
    }

    /// Where in the target of `to` the piece of `from` begins, or what becomes of it.
    pub(super) fn landing(&self, from: usize, to: usize) -> usize {
        match self.kind {
            Kind::AllReduce => self.share(to).start,
            Kind::AllGather | Kind::Gather { .. } | Kind::AllToAll => from * self.bytes,
            _ => 0,
        }
    }

    /// Whether the folded shares go to all ranks.
    pub(super) fn spreads(&self) -> bool {
        self.kind == Kind::AllReduce
    }

    /// Whether a source must be copied before anybody writes its result where it was.
    pub(super) fn needs_copy(&self) -> bool {
        self.kind == Kind::Direct
    }

    /// How many parts a staged round of a source has: one if all readers read the same, else one for each.
    pub(super) fn parts(&self) -> usize {
        match self.kind {
            Kind::AllGather | Kind::Broadcast { .. } | Kind::Gather { .. } => 1,
            _ => self.ranks,
        }
    }

    /// Bytes of the source of `from` that anybody reads.
    pub(super) fn source_bytes(&self, from: usize) -> usize {
        (0..self.ranks)
            .map(|to| self.piece(from, to))
            .filter(|p| !p.is_empty())
            .map(|p| p.end)
            .max()
            .unwrap_or(0)
    }

    /// Bytes of the longest piece.
    pub(super) fn longest(&self) -> usize {
        let ranks = 0..self.ranks;
        ranks
            .clone()
            .flat_map(|from| ranks.clone().map(move |to| self.piece(from, to).len()))
            .max()
            .unwrap_or(0)
    }

    fn share(&self, part: usize) -> Range<usize> {
        let elements = share(self.bytes / self.element_bytes, self.ranks, part);
        elements.start * self.element_bytes..elements.end * self.element_bytes
    }
}
