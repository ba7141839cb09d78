//! What is refused before anything is sent.

use super::core::Core;
use crate::{
    Error, Result,
    transport::{DType, OpKind, ReduceOp},
};

/// The reduction must be defined for the type.
pub(super) fn reduction(op: ReduceOp, dtype: DType) -> Result<()> {
    if op.supports(dtype) { Ok(()) } else { Err(Error::UnsupportedReduction { op, dtype }) }
}

/// A buffer must hold whole elements.
pub(super) fn whole(op: OpKind, found: usize, dtype: DType) -> Result<()> {
    if found.is_multiple_of(dtype.size_bytes()) {
        return Ok(());
    }
    let expected = format!("a multiple of {} for {dtype}", dtype.size_bytes());
    Err(Error::BufferLength { op, buffer: "data", expected, found })
}

impl Core {
    /// The root must be a rank.
    pub(super) fn check_root(&self, op: OpKind, root: usize) -> Result<()> {
        if root < self.world_size {
            return Ok(());
        }
        Err(Error::Root { op, root, world_size: self.world_size })
    }

    /// A buffer must hold one part of each rank.
    pub(super) fn check_parts(
        &self,
        op: OpKind,
        buffer: &'static str,
        found: usize,
        part: usize,
    ) -> Result<()> {
        match part.checked_mul(self.world_size) {
            Some(expected) if expected == found => Ok(()),
            _ => {
                let expected = format!("{} ranks times {part}", self.world_size);
                Err(Error::BufferLength { op, buffer, expected, found })
            }
        }
    }

    /// The buffer of all ranks' parts must be there on the root, and on no other rank.
    pub(super) fn check_root_parts(
        &self,
        op: OpKind,
        buffer: &'static str,
        found: Option<usize>,
        part: usize,
        root: usize,
    ) -> Result<()> {
        let is_root = self.rank == root;
        match found {
            Some(found) if is_root => self.check_parts(op, buffer, found, part),
            None if !is_root => Ok(()),
            _ => Err(Error::RootBuffer { op, is_root }),
        }
    }

    /// A buffer must divide into one part of each rank.
    pub(super) fn check_divides(&self, op: OpKind, send: usize, recv: usize, dtype: DType) -> Result<()> {
        if send != recv {
            return Err(Error::BufferLength {
                op,
                buffer: "recv",
                expected: format!("as many as the send buffer, {send}"),
                found: recv,
            });
        }
        if send.is_multiple_of(self.world_size * dtype.size_bytes()) {
            return Ok(());
        }
        let expected = format!("{} equal parts of whole elements of {dtype}", self.world_size);
        Err(Error::BufferLength { op, buffer: "send", expected, found: send })
    }

    /// The other side of a message must be another rank.
    pub(super) fn check_peer(&self, call: &'static str, peer: usize) -> Result<()> {
        self.check_root(OpKind::Message, peer)?;
        if peer == self.rank { Err(Error::MessageToSelf { call, rank: peer }) } else { Ok(()) }
    }
}
