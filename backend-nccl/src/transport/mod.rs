//! Moves bytes between ranks: what a collective does, below tensors, groups and order.

mod dtype;
mod frame;
mod plan;
mod reduce;
mod single;
pub(crate) mod tcp;

use std::fmt;

pub use dtype::{DType, ReduceOp};
pub use frame::{OpKind, Signature};
pub(crate) use single::Single;

use crate::{deadline::Deadline, failure::Failure};

/// One collective with its buffers. Lengths have been checked by the group.
#[derive(Debug)]
pub enum Collective<'a> {
    /// Reduce `buffer` over the ranks, in place, the same result on all.
    #[allow(missing_docs)]
    AllReduce { buffer: &'a mut [u8], dtype: DType, op: ReduceOp },
    /// Copy the `buffer` of `root` to all.
    #[allow(missing_docs)]
    Broadcast { buffer: &'a mut [u8], dtype: DType, root: usize },
    /// Collect every rank's `send` in `recv`, in rank order.
    #[allow(missing_docs)]
    AllGather { send: &'a [u8], recv: &'a mut [u8], dtype: DType },
    /// Reduce `send` over the ranks and keep this rank's part of the result in `recv`.
    #[allow(missing_docs)]
    ReduceScatter { send: &'a [u8], recv: &'a mut [u8], dtype: DType, op: ReduceOp },
    /// Wait until every rank has come here.
    Barrier,
}

impl Collective<'_> {
    /// What is compared between ranks: everything but the contents.
    pub fn signature(&self, sequence: u64) -> Signature {
        let (kind, dtype, op, root, bytes) = match self {
            Self::AllReduce { buffer, dtype, op } => (OpKind::AllReduce, *dtype, Some(*op), 0, buffer.len()),
            Self::Broadcast { buffer, dtype, root } => (OpKind::Broadcast, *dtype, None, *root, buffer.len()),
            Self::AllGather { send, dtype, .. } => (OpKind::AllGather, *dtype, None, 0, send.len()),
            Self::ReduceScatter { recv, dtype, op, .. } => {
                (OpKind::ReduceScatter, *dtype, Some(*op), 0, recv.len())
            }
            Self::Barrier => (OpKind::Barrier, DType::U8, None, 0, 0),
        };
        Signature { sequence, kind, dtype, op, root: root as u32, bytes: bytes as u64 }
    }
}

/// What accompanies a collective on its way to a transport.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The place in the order of collectives of the group, the same on all ranks.
    pub sequence: u64,
    /// When the call must have ended.
    pub deadline: Deadline,
    /// Compare signatures on all ranks before any data moves. Without it a difference is still an error, but
    /// buffers may have been written by then.
    pub check: bool,
}

/// Where the buffers of a transport live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory that the process can read and write.
    Host,
}

/// A way to run collectives between the ranks of one group.
///
/// The group calls [`execute`](Transport::execute) for one collective at a time, in the order of their sequence
/// numbers, from whichever thread has the turn; [`abort`](Transport::abort) may come from any thread at any time.
///
/// Buffers are host slices. This serves shared memory and MPI as it stands. A device transport such as NCCL is an
/// addition to a host transport and not a replacement: model checks, gathers of bytes and barriers stay host traffic,
/// and pointers of a device must never pose as `&mut [u8]`. Such a transport reports its own [`MemoryKind`] and
/// takes its pointers and streams through a method of its own.
pub trait Transport: Send + Sync + fmt::Debug {
    /// The name in messages and records: `single`, `tcp`, …
    fn name(&self) -> &'static str;

    /// Where the buffers of [`execute`](Transport::execute) live.
    fn memory(&self) -> MemoryKind {
        MemoryKind::Host
    }

    /// Runs one collective to its end, with this rank's part complete when it returns.
    ///
    /// # Errors
    ///
    /// The cause that ended the group, the same on every rank. After an error every later call returns it at once,
    /// and the contents of the buffers that were written are undefined.
    fn execute(&self, call: Call, collective: Collective<'_>) -> Result<(), Failure>;

    /// Ends the group on all ranks with this cause, and wakes a call that waits on another thread.
    fn abort(&self, failure: Failure);

    /// Tells the others that this rank leaves on purpose. Called once, after the last collective; never blocks.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_trait_is_object_safe() {
        let transport: Box<dyn Transport> = Box::new(Single::default());
        assert_eq!(transport.name(), "single");
        assert_eq!(transport.memory(), MemoryKind::Host);
    }
}
