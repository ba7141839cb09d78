//! NCCL as the transport of tensors on GPUs: below tensors, above the driver. Addresses of the device, never host slices.
//!
//! One [`Nccl`] is one communicator of one group on one GPU. It needs the group's host transport to find its ranks, to
//! hear of failures and to tell them.
//!
//! With context events a collective waits for all that its GPU has been given, the collectives of other groups included. So
//! groups that share GPUs must make their calls in one order on all ranks, as NCCL itself asks of communicators; ranks that
//! do not wait for each other until the deadline.
//!
//! This holds on an assumption: what NCCL does on the GPU for a collective is in the kernel on its stream, or comes to the
//! context before the collective is enqueued. Where it is told to copy from a thread of its own meanwhile
//! (`NCCL_P2P_USE_CUDA_MEMCPY`, `NCCL_SHM_USE_CUDA_MEMCPY`), the host orders instead.

mod api;
mod built_for;
mod candidates;
mod codes;
mod communicator;
mod compare;
mod driver;
mod ending;
mod engine;
mod event;
mod find;
mod gpu;
mod issue;
mod leave;
mod library;
mod life;
mod operation;
mod ordering;
mod progress;
mod refused;
mod setup;
mod shared;
mod slots;
mod stream;
mod tally;
#[cfg(test)]
mod tests;
mod thread;
mod variables;
mod watch;

pub(crate) use candidates::Libraries;
pub(crate) use engine::{Nccl, Settings};
pub(crate) use library::Library;
pub(crate) use operation::{DeviceCall, DeviceOperation, Fence, Region};
pub(crate) use ordering::TEST_BYTES;
pub(crate) use slots::Slots;
pub(crate) use variables::Variables;
