//! What is asked of NCCL: memory on the device, and what to do with it.

use std::any::Any;

use crate::{
    failure::Failure,
    transport::{DType, ReduceOp},
};

/// A part of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Its address on the device.
    pub(crate) address: u64,
    /// Its length in bytes.
    pub(crate) len_bytes: usize,
}

/// One collective on memory of the device. Send and receive regions may be the same where both have one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceOperation {
    /// Reduce `send` over the ranks to `recv`, on all.
    AllReduce { send: Region, recv: Region, op: ReduceOp },
    /// Copy the `send` of `root` to the `recv` of all.
    Broadcast { send: Region, recv: Region, root: usize },
    /// Collect every rank's `send` in `recv`, in rank order.
    AllGather { send: Region, recv: Region },
    /// Reduce `send` over the ranks and keep this rank's part in `recv`.
    ReduceScatter { send: Region, recv: Region, op: ReduceOp },
    /// Give part `i` of `send` to rank `i`, and collect what the ranks give this one, in rank order. Not in place.
    AllToAll { send: Region, recv: Region },
    /// Send to one rank and receive from one, at the same time.
    #[cfg_attr(feature = "cuda", allow(dead_code, reason = "messages of tensors still go by the host"))]
    Exchange { send: Option<(Region, usize)>, receive: Option<(Region, usize)> },
    /// Copy each part to its offset in `bucket` (in bytes; what is between them is zeroed), then reduce `bucket` in place.
    Bucket { parts: Vec<(Region, usize)>, bucket: Region, op: ReduceOp },
}

/// Waits on the host until what computes the operands has ended on the device; else says why that cannot be known.
pub(crate) type Fence = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Hears of an operation's end, with the failure that ended the group if it was that.
pub(crate) type OnEnd = Box<dyn FnOnce(Option<&Failure>) + Send>;

/// An operation with what belongs to it.
pub(crate) struct DeviceCall {
    pub(crate) operation: DeviceOperation,
    pub(crate) dtype: DType,
    /// What keeps the regions valid. Dropped when the device is done with them, whatever the caller drops.
    pub(crate) keep: Box<dyn Any + Send>,
    /// Called when the device gets the operation.
    pub(crate) on_start: Box<dyn FnOnce() + Send>,
    /// Called when the device is done with it, or with the failure that ended the group.
    pub(crate) on_end: OnEnd,
}
