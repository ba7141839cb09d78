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

mod agreement;
mod arithmetic;
mod bucket;
pub mod communication;
mod config;
mod data_parallel;
mod events;
mod hand_out;
mod layout;
mod lift;
mod memory;
mod module_hook;
mod parameters;
mod parts;
mod reducer;
mod replicate;
#[cfg(feature = "train")]
mod strategy;
mod uneven;

pub use communication::{Communication, CommunicationHook, PowerSgdConfig};
pub use config::*;
pub use data_parallel::DistributedDataParallel;
pub use events::{DdpEvent, EventLog};
#[cfg(feature = "train")]
pub use strategy::DdpStrategy;
