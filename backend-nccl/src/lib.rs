//! Distributed data-parallel training for Burn.
// burn-ndarray is deprecated as a whole since Burn 0.22 and stays supported here; the backend-extension macro names its
// type in every generated impl, so there is no single place to allow it.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod backends;
pub mod ddp;
mod deadline;
mod dtype;
mod error;
mod failure;
pub mod functions;
pub mod group;
mod hook;
pub mod launch;
mod ops;
pub mod rendezvous;
pub mod transport;

pub use ddp::{DdpConfig, DistributedDataParallel};
pub use deadline::Deadline;
pub use error::{Error, Result};
pub use failure::Failure;
pub use group::{GroupId, GroupOptions, ProcessGroup, Work};
pub use hook::{GradientHook, GradientSink, gradient_hook};
pub use ops::{BucketSlot, Call, CollectiveBackend};
pub use rendezvous::Environment;
pub use transport::{DType, ReduceOp};
