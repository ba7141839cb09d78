//! Test doubles of the CUDA driver and of NCCL, seen from a test: what they can be told to do, and how a test gets an
//! instance of its own. The doubles themselves use [`Double`].
//!
//! Nothing here computes on a GPU: device memory is host memory, and a stream is a thread.

mod config;
mod double;
mod elf;
mod install;

pub use config::{AsyncError, Config, Cuda, Device, Injection, Nccl, Operation, PeerLoss};
pub use double::{Double, lock};
pub use install::{InstallError, Stubs};
