//! Distributed data-parallel training for Burn.

mod deadline;
mod error;
pub mod group;
pub mod launch;
pub mod rendezvous;
pub mod transport;

pub use deadline::Deadline;
pub use error::{Error, Failure, Result};
pub use group::{GroupId, GroupOptions, ProcessGroup, Work};
pub use rendezvous::Environment;
pub use transport::{DType, ReduceOp};
