//! Batch normalisation with the statistics of all ranks.
//!
//! With few samples a rank, the mean and variance of one rank's batch are poor estimates, and every rank normalises
//! with others. [`SyncBatchNorm`] normalises with those of the joined batch: `n` ranks train as one process would on all
//! their samples. One all-gather of `2 channels + 1` numbers in the forward pass and one all-reduce of `2 channels`
//! numbers in the backward pass, each a point where ranks wait for each other.
//!
//! Without a group the same layer is a fused batch norm of this process alone.
//!
//! # Which layers synchronise
//!
//! [`DistributedDataParallel::new`](crate::DistributedDataParallel::new) connects every
//! [synchronized](SyncBatchNormConfig::synchronized) layer of its model that has no group yet. A loop without it calls
//! [`connect`]:
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl::Error> {
//! use burn::tensor::{Device, Tensor};
//! use burn_nccl::{ProcessGroup, SyncBatchNormConfig, sync_batch_norm};
//!
//! let group = ProcessGroup::from_environment()?;
//! let norm = SyncBatchNormConfig::new(3).init(&Device::flex().autodiff());
//! let norm = sync_batch_norm::connect(norm, &group);
//! let output = norm.try_forward(Tensor::<4>::ones([2, 3, 8, 8], &Device::flex().autodiff()))?;
//! # assert_eq!(output.dims(), [2, 3, 8, 8]);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! # Every rank takes part
//!
//! Both passes are collectives, so every rank must run the layer equally often and in the same order:
//!
//! - A rank whose batch is empty still runs its forward and backward pass: the empty batch counts for nothing and its
//!   gradients are zero.
//! - A rank that has run out of batches runs no forward pass at all. Give all ranks equally many (a padding sampler,
//!   [`UnevenInputs::Even`](crate::ddp::UnevenInputs)); `JoinActive` and `JoinWorld` are refused for such a model.
//! - A rank that skips a layer ends the group with an error on all ranks, by the deadline at the latest.

mod connect;
mod module;

pub use connect::connect;
pub(crate) use connect::connect_and_count;
#[cfg(feature = "train")]
pub(crate) use connect::connecting;
pub use module::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig};
