//! Moves bytes between ranks: what a collective does, below tensors, groups and order.

mod buffer;
mod buffers;
mod choose;
pub(crate) mod control;
mod data;
mod device;
mod dtype;
mod engine;
mod frame;
mod host;
mod kind;
mod layered;
mod members;
pub(crate) mod mesh;
mod meshed;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "no_mpi.rs"]
pub(crate) mod mpi;
mod named;
#[cfg(feature = "nccl")]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without CUDA tensors only tests come here"))]
pub(crate) mod nccl;
#[cfg(not(feature = "nccl"))]
#[path = "no_nccl.rs"]
pub(crate) mod nccl;
mod plan;
mod reduce;
mod shm;
mod single;
mod start;
mod tcp;
mod witness;

use std::fmt;

pub use buffer::Buffer;
pub use device::{DeviceTransport, StreamOrdering};
pub use dtype::{DType, ReduceOp};
pub use frame::{OpKind, Signature};
pub use kind::TransportKind;
pub(crate) use mesh::Mesh;
pub(crate) use meshed::connect;
pub(crate) use single::Single;
pub(crate) use start::Wish;
pub(crate) use witness::{MAX_ACCOUNT_BYTES, Witness};

use crate::{deadline::Deadline, failure::Failure};

/// One collective with its buffers. Lengths have been checked by the group.
#[derive(Debug)]
pub(crate) enum Collective<'a> {
    /// Reduce `buffer` over the ranks, in place, the same result on all.
    AllReduce { buffer: &'a mut [u8], dtype: DType, op: ReduceOp },
    /// Copy the `buffer` of `root` to all.
    Broadcast { buffer: &'a mut [u8], dtype: DType, root: usize },
    /// Collect every rank's `send` in `recv`, in rank order.
    AllGather { send: &'a [u8], recv: &'a mut [u8], dtype: DType },
    /// Reduce `send` over the ranks and keep this rank's part of the result in `recv`.
    ReduceScatter { send: &'a [u8], recv: &'a mut [u8], dtype: DType, op: ReduceOp },
    /// Collect every rank's `send` in the `recv` of `root`, in rank order. The others have no `recv`.
    Gather { send: &'a [u8], recv: Option<&'a mut [u8]>, dtype: DType, root: usize },
    /// Give each rank its part of the `send` of `root`, in rank order. The others have no `send`.
    Scatter { send: Option<&'a [u8]>, recv: &'a mut [u8], dtype: DType, root: usize },
    /// Give part `i` of `send` to rank `i`, and collect what the ranks give this one, in rank order.
    AllToAll { send: &'a [u8], recv: &'a mut [u8], dtype: DType },
    /// Send to one rank and receive from one, at the same time; either may be missing. Other ranks take no part.
    Exchange { send: Option<Outgoing<'a>>, receive: Option<Incoming<'a>>, dtype: DType },
    /// Wait until every rank has come here.
    Barrier,
}

/// A message to one rank.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// What is sent.
    pub(crate) buffer: &'a [u8],
    /// To whom.
    pub(crate) to: usize,
    /// The place among the messages of this rank to that one, from 1.
    pub(crate) number: u64,
}

/// A message from one rank.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    /// Where it goes; the sender's must be as long.
    pub(crate) buffer: &'a mut [u8],
    /// From whom.
    pub(crate) from: usize,
    /// The place among the messages of that rank to this one, from 1.
    pub(crate) number: u64,
}

impl Outgoing<'_> {
    /// What its receiver must expect.
    pub(crate) fn signature(&self, dtype: DType, own: usize) -> Signature {
        message(self.number, dtype, own, self.buffer.len())
    }
}

impl Incoming<'_> {
    /// What its sender must have sent.
    pub(crate) fn signature(&self, dtype: DType) -> Signature {
        message(self.number, dtype, self.from, self.buffer.len())
    }
}

/// The signature of a message from the rank `from`.
fn message(number: u64, dtype: DType, from: usize, bytes: usize) -> Signature {
    let (kind, root, bytes) = (OpKind::Message, from as u32, bytes as u64);
    Signature { sequence: number, kind, dtype, op: None, root, bytes }
}

/// What is recorded of an operation that waits for its turn.
pub(crate) fn planned(
    kind: OpKind,
    dtype: DType,
    op: Option<ReduceOp>,
    root: usize,
    bytes: usize,
) -> Signature {
    Signature { sequence: 0, kind, dtype, op, root: root as u32, bytes: bytes as u64 }
}

impl Collective<'_> {
    /// What is compared between ranks: everything but the contents. Messages have one for each direction instead, see
    /// [`Outgoing::signature`]; theirs here is for records only.
    pub(crate) fn signature(&self, sequence: u64) -> Signature {
        let (kind, dtype, op, root, bytes) = match self {
            Self::AllReduce { buffer, dtype, op } => (OpKind::AllReduce, *dtype, Some(*op), 0, buffer.len()),
            Self::Broadcast { buffer, dtype, root } => (OpKind::Broadcast, *dtype, None, *root, buffer.len()),
            Self::AllGather { send, dtype, .. } => (OpKind::AllGather, *dtype, None, 0, send.len()),
            Self::ReduceScatter { recv, dtype, op, .. } => {
                (OpKind::ReduceScatter, *dtype, Some(*op), 0, recv.len())
            }
            Self::Gather { send, dtype, root, .. } => (OpKind::Gather, *dtype, None, *root, send.len()),
            Self::Scatter { recv, dtype, root, .. } => (OpKind::Scatter, *dtype, None, *root, recv.len()),
            Self::AllToAll { send, dtype, .. } => (OpKind::AllToAll, *dtype, None, 0, send.len()),
            Self::Exchange { send, receive, dtype } => {
                let peer = send.as_ref().map(|m| m.to).or(receive.as_ref().map(|m| m.from));
                let bytes = send.as_ref().map_or(0, |m| m.buffer.len())
                    + receive.as_ref().map_or(0, |m| m.buffer.len());
                (OpKind::Message, *dtype, None, peer.unwrap_or(0), bytes)
            }
            Self::Barrier => (OpKind::Barrier, DType::U8, None, 0, 0),
        };
        Signature { sequence, kind, dtype, op, root: root as u32, bytes: bytes as u64 }
    }

    /// What this folds, which what the group called need not: see [`Call::part_of`].
    pub(crate) fn reduction(&self) -> Option<(DType, ReduceOp)> {
        match self {
            Self::AllReduce { dtype, op, .. } | Self::ReduceScatter { dtype, op, .. } => Some((*dtype, *op)),
            _ => None,
        }
    }

    /// Whether all ranks of the group take part, so that it has a place in their common order.
    pub(crate) fn is_common(&self) -> bool {
        !matches!(self, Self::Exchange { .. })
    }
}

/// What accompanies a collective on its way to a transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The place in the order of collectives of the group, the same on all ranks.
    pub(crate) sequence: u64,
    /// When the call must have ended.
    pub(crate) deadline: Deadline,
    /// Compare signatures on all ranks before any data moves. Without it a difference is still an error, but
    /// buffers may have been written by then.
    pub(crate) check: bool,
    /// Let payloads carry checksums where they travel over a network.
    pub(crate) checksums: bool,
    /// Who waits for it.
    pub(crate) patience: Patience,
    /// What the group called, where this is a step of it: what ranks compare, since steps can look alike.
    pub(crate) part_of: Option<Signature>,
}

impl Call {
    /// What this rank announces and what it expects to hear.
    pub(crate) fn signatures(
        &self,
        collective: &Collective<'_>,
        among: &members::Members,
    ) -> (Signature, Signature) {
        let common = self.part_of.unwrap_or_else(|| collective.signature(self.sequence));
        let Collective::Exchange { send, receive, dtype } = collective else { return (common, common) };
        let announced = send.as_ref().map_or(common, |message| message.signature(*dtype, among.own()));
        let expected = receive.as_ref().map_or(common, |message| message.signature(*dtype));
        (announced, expected)
    }
}

/// Who waits for a collective, and so whether a core may be kept busy to end the wait a few microseconds earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The caller does nothing until the end: look often for a short time.
    Waiting,
    /// The caller computes meanwhile, on the core that looking would take from it: sleep at once.
    Background,
}

/// A way to run collectives between the ranks of one group.
///
/// The group calls [`execute`](Transport::execute) for one collective at a time, in the order of their sequence
/// numbers, from whichever thread has the turn; [`abort`](Transport::abort) may come from any thread at any time.
///
/// Buffers are host slices. A device transport such as NCCL is an addition to a host transport and not a replacement:
/// model checks, gathers of bytes and barriers stay host traffic, and pointers of a device must never pose as
/// `&mut [u8]`.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    /// The name in messages and records: `single`, `tcp`, …
    fn name(&self) -> &'static str;

    /// Runs one collective to its end, with this rank's part complete when it returns.
    ///
    /// # Errors
    ///
    /// The cause that ended the group, the same on every rank. After an error every later call returns it at once,
    /// and the contents of the buffers that were written are undefined.
    fn execute(&self, call: Call, collective: Collective<'_>) -> Result<(), Failure>;

    /// Ends the group on all ranks with this cause, and wakes a call that waits on another thread. Returns the first cause
    /// there was; where ranks can be asked, a missed deadline knows then who is missing.
    fn abort(&self, failure: Failure) -> Failure;

    /// Why an operation that is under way beside this transport will not end: the group has ended, or a rank is lost. Cheap
    /// while nothing has changed.
    fn obstacle(&self) -> Option<Failure>;

    /// Why the group has ended, or which rank is lost. Unlike for [`obstacle`](Transport::obstacle), a rank that has left on
    /// purpose is no reason.
    fn fault(&self) -> Option<Failure>;

    /// Gives every rank every rank's `value`, in rank order, beside the order of collectives: for setting up, a few
    /// kilobytes each. A label serves once at a time.
    ///
    /// # Errors
    ///
    /// A rank that has failed, left or died, or the deadline.
    fn gather(&self, label: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, Failure>;

    /// What has come of a [`gather`](Transport::gather) that is under way somewhere, in rank order; nothing once it has ended
    /// here.
    fn posted(&self, _label: &str) -> Vec<Option<Vec<u8>>> {
        Vec::new()
    }

    /// Memory that this transport moves without a copy, zeroed; ordinary memory where it makes no difference.
    fn allocate(&self, len_bytes: usize) -> Buffer {
        Buffer::on_heap(len_bytes)
    }

    /// Who answers other ranks' questions about this one and looks into failures.
    fn set_witness(&self, _witness: std::sync::Arc<dyn Witness>) {}

    /// The connections of the group, over which a sub-group finds its ranks; `None` for a group of one.
    fn mesh(&self) -> Option<&Mesh> {
        None
    }

    /// Tells the others that this rank leaves on purpose. Called once, after the last collective; does not wait for
    /// them, except up to 200 ms for each that has been deaf for so long that its connection is full.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_trait_is_object_safe() {
        let transport: Box<dyn Transport> = Box::new(Single::default());
        assert_eq!(transport.name(), "single");
    }
}
