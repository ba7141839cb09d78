//! Data-parallel training whose all-reduce overlaps the backward pass.
//!
//! One step, on every rank:
//!
//! 1. [`hook`](DistributedDataParallel::hook) maps the model to a copy whose parameters report their gradients. Each
//!    hook has a second parent, its bucket's *lift*, which puts it at the right depth of the backward tape.
//! 2. The user's forward pass runs on that copy.
//! 3. [`backward`](DistributedDataParallel::backward) runs the tape. A hook copies its gradient into a flat bucket;
//!    the last one of a bucket hands it to the group's communication thread, where the [communication
//!    hook](communication) averages it while the tape runs on. Buckets launch in index order on every rank.
//!
//!    A synchronized batch norm runs collectives of its own in between. That its place among the buckets is the same
//!    on every rank rests on Burn's tape: steps run by descending depth, and within one depth in the order of a
//!    depth-first walk over the recorded parents, never in hash-map order. So equal graphs give equal orders, and
//!    options that would let the graphs differ are refused for such a model.
//! 4. What is still in flight is waited for, and gradients are handed out, on Flex as parts of the buckets.
//!
//! # On GPUs
//!
//! Where every rank has its whole model on one CUDA device and the group has NCCL, gradients do not pass the host: a hook
//! keeps its gradient as a tensor, a complete bucket is copied into one flat tensor and reduced there on NCCL's own stream,
//! and the averages are views of it, whose slots begin at multiples of 512 bytes. The values of rank 0 go from device to
//! device at the start too. What passes the host are a few bytes for each step, whose order the group keeps: which
//! parameters were used and, if asked for, which ranks have a batch.
//!
//! With [`StreamOrdering::ContextEvents`](crate::StreamOrdering::ContextEvents) a step waits for the device nowhere: it is
//! handed over, and the optimizer step after it. With [`HostFence`](crate::StreamOrdering::HostFence) the caller waits once,
//! at the end of the backward pass, for the last bucket; a synchronized batch norm adds a wait in each direction.
//!
//! [`Communication::F16`] and [`BF16`](Communication::BF16) halve what travels there as well; NCCL then forms its partial
//! sums in the half type, where the host forms them in f32. [`Communication::PowerSgd`] and hooks of a user's own compute
//! on the host, so that gradients pass host memory with them. In a group of one rank nothing travels at all.
//! [`DdpConfig::bucket_storage`] forces a side.

mod agreement;
mod arithmetic;
mod bucket;
pub mod communication;
mod config;
mod construction;
mod data_parallel;
mod events;
mod hand_out;
mod layout;
mod lift;
mod module_hook;
mod parameters;
mod reducer;
mod replicate;
mod storage;
#[cfg(feature = "train")]
mod strategy;
mod uneven;

pub use communication::{Communication, CommunicationHook, PowerSgdConfig};
pub use config::*;
pub use data_parallel::DistributedDataParallel;
pub use events::{DdpEvent, EventLog};
#[cfg(feature = "train")]
pub use strategy::DdpStrategy;
