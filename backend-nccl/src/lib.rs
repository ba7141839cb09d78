//! Distributed data-parallel training for [Burn](https://burn.dev): process groups, collectives on tensors, and a
//! `DistributedDataParallel` whose gradient all-reduce overlaps the backward pass.
//!
//! # A training loop on many processes
//!
//! Five lines turn a loop for one device into one for many. Started alone, the program below is a group of one;
//! started by `burnrun --nproc-per-node 4 -- ./train` (or `torchrun --no-python`, `mpirun`, `srun`) it is four ranks
//! that train one model.
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl::Error> {
//! use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_nccl::{DdpConfig, DistributedDataParallel, ProcessGroup};
//!
//! let device = Device::flex().autodiff();
//! let group = ProcessGroup::from_environment()?;                                                  // 1: join the others
//! device.seed(7 + group.rank() as u64);                                                           // 2: other data on each rank
//! let model = LinearConfig::new(4, 1).init(&device);
//! let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &DdpConfig::new())?;     // 3: same model on all
//! let mut optimizer = SgdConfig::new().init();
//! for _step in 0..3 {
//!     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = ddp.hook(&model)?.forward(batch).powi_scalar(2).mean();                          // 4: was model.forward
//!     let gradients = ddp.backward(&loss, &model)?;                                               // 5: was loss.backward
//!     model = optimizer.step(0.1, model, gradients);
//! }
//! # assert_eq!(group.world_size(), 1);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! Each rank must see other data: give its loader every `world_size`-th sample, starting at `rank`. Save on one rank
//! (`group.rank() == 0`), after [`sync_buffers`](DistributedDataParallel::sync_buffers).
//!
//! With burn-train (feature `train`), `DdpStrategy` does the same inside Burn's learner.
//!
//! # The parts
//!
//! - [`ProcessGroup`]: rank, world size, and collectives on byte buffers, with a deadline on every wait.
//! - [`functions`]: the same on tensors, differentiable.
//! - [`ddp`]: buckets, gradient hooks, the reducer, uneven inputs, and the burn-train strategy.
//! - [`sync_batch_norm`]: batch normalisation with the statistics of all ranks.
//! - [`amp`]: mixed precision, gradient scaling for it, clipping by global norm.
//! - [`accumulation`]: several micro-batches for one optimizer step.
//! - [`launch`]: starts ranks, watches them and ends them together; the command `burnrun`.
//! - `devices` (feature `nccl`): which GPUs there are, who holds them, and which a rank takes.
//! - [`rendezvous`] and [`transport`]: how ranks find each other, and how bytes move.
//!
//! # "Backend decorator"
//!
//! In Burn 0.22 the set of backends under `Tensor<D>` is closed, so no outside type can wrap a backend and be reached
//! from a module. The sanctioned form of a decorator is a backend extension: [`CollectiveBackend`] adds the collective
//! operations to every backend it is implemented for, and its implementation for `Autodiff` stacks on the others.
//!
//! # Features
//!
//! `flex`, `ndarray` and `cuda` name the backends whose tensors can take part; none is on by default, and each must be
//! on here as well as in `burn`:
//!
//! ```toml
//! burn = { version = "=0.22.1", features = ["flex", "optim"] }
//! burn-nccl = { path = "burn-nccl/backend-nccl", features = ["flex"] }
//! ```
//!
//! `train` adds [`ddp`]`::DdpStrategy`. `mpi` lets ranks that an `mpirun` has started find each other with no other setting,
//! and exchange data between hosts by the machine's MPI; it needs `mpicc` and libclang to build, and the same MPI's
//! `mpirun` to run.
//!
//! `cuda` has the feature `nccl`, by which CUDA tensors move from GPU to GPU; NCCL and the driver are loaded at run time.
//! `BURN_NCCL_LIBRARY` and `BURN_NCCL_CUDA_LIBRARY` name them where they are not found, `BURN_NCCL_DEVICE_TRANSPORT`
//! ([`DeviceTransport`]) and `BURN_NCCL_STREAM_ORDERING` ([`StreamOrdering`]) choose how they are used.
//!
//! # Errors
//!
//! A failure of one rank ends the group on all ranks: each returns an [`Error`] that names the rank, the collective
//! and the remedy. Nothing waits for ever.
//!
//! When a collective misses its deadline, the ranks that wait ask all others how they stand and log one line for each:
//! what it finished last, what it is in and where the program called that, or that it does not answer. With
//! `BURN_NCCL_FLIGHT_RECORD=FOLDER` each rank also writes its last thousand operations there
//! ([`FlightRecord`](group::FlightRecord)); `burnrun --log-dir` sets it. `BURN_NCCL_DEBUG=1` compares every collective
//! across ranks before data moves and lets payloads on TCP carry checksums.
// burn-ndarray is deprecated as a whole since Burn 0.22 and stays supported here; the backend-extension macro names its
// type in every generated impl, so there is no single place to allow it.
#![cfg_attr(feature = "ndarray", allow(deprecated))]
// Without a backend the routing that the macro generates has nowhere to send its arguments.
#![cfg_attr(not(any(feature = "flex", feature = "ndarray", feature = "cuda")), allow(unused_variables))]

/// Whether this build can use MPI.
pub(crate) const HAS_MPI: bool = cfg!(feature = "mpi");

pub mod accumulation;
pub mod amp;
mod backends;
mod batch_norm;
mod call;
pub mod ddp;
mod deadline;
mod device_error;
#[cfg(feature = "nccl")]
pub mod devices;
mod dtype;
mod error;
mod failure;
mod flat_bucket;
pub mod functions;
#[cfg(feature = "flex")]
mod gradient_kernels;
pub mod group;
mod hook;
pub mod launch;
mod ops;
mod placement;
pub mod rendezvous;
mod site;
#[cfg(feature = "flex")]
mod strided;
pub mod sync_batch_norm;
pub mod transport;

pub use ddp::{DdpConfig, DistributedDataParallel};
pub use deadline::Deadline;
pub use device_error::DeviceError;
pub use error::{Error, Result};
pub use failure::{CallSites, Failure};
pub use group::{GroupOptions, ProcessGroup, Work};
pub use hook::{ArrivedGradient, GradientHook, GradientSink, gradient_hook};
pub use ops::{
    AsyncCall, BatchNormSettings, BucketParts, Call, CollectiveBackend, FlatBucket, GradientNorm, Placement,
    Route,
};
pub use rendezvous::Environment;
pub use sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig};
pub use transport::{Buffer, DType, DeviceTransport, ReduceOp, StreamOrdering, TransportKind};
