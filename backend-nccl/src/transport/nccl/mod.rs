//! NCCL as the transport of tensors on GPUs: below tensors, above the driver. Addresses of the device, never host slices.
//!
//! One [`Nccl`] is one communicator of one group on one GPU. It needs the group's host transport to find its ranks, to
//! hear of failures and to tell them.

mod engine;
mod operation;
mod slots;

pub(crate) use engine::{Flight, Nccl, Settings};
pub(crate) use operation::{DeviceCall, DeviceOperation, Fence, Region};
pub(crate) use slots::Slots;
