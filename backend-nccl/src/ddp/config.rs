//! The options of [`DistributedDataParallel`](super::DistributedDataParallel).

use burn::config::Config;

use super::communication::Communication;
use crate::error::{Error, Result};

/// What a parameter without a gradient means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UnusedParameters {
    /// An error on all ranks, in the same step, that names the parameters and the ranks.
    Refuse,
    /// A rank that did not use a parameter contributes zeros; a parameter that no rank used gets no gradient at
    /// all, so that momentum and weight decay leave it alone. PyTorch: `find_unused_parameters=True`.
    Allow,
}

/// What happens when ranks have different numbers of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UnevenInputs {
    /// All ranks have the same number of batches, as `DistributedSampler` sees to. Nothing is exchanged.
    Even,
    /// Ranks tell each other in each step whether they still have data; a difference is an error on all ranks.
    /// PyTorch: `join(throw_on_early_termination=True)`. With a connected [`SyncBatchNorm`](crate::SyncBatchNorm) in a
    /// loop of your own the ranks with data are in its forward pass by then, and the error is a mismatch of collectives.
    Strict,
    /// Ranks without data take part with zeros; the mean is over the ranks that still have data.
    JoinActive,
    /// As `JoinActive`, but the sum is always divided by the world size.
    /// PyTorch: `join(divide_by_initial_world_size=True)`.
    JoinWorld,
}

/// Where gradients lie until they are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum BucketStorage {
    /// On the GPUs where every rank has its whole model on one and NCCL can move them, else in host memory.
    Auto,
    /// In host memory.
    Host,
    /// As tensors on the model's device, also where the group's transport must copy them to the host: for comparison. The
    /// model must be on one device, and the communication one without arithmetic of its own.
    Device,
}

/// Options of data-parallel training. They must be equal on all ranks, which is checked at construction.
#[derive(Config, Debug)]
pub struct DdpConfig {
    /// Gradients are reduced in buckets of about this size, in bytes.
    #[config(default = 26_214_400)]
    pub bucket_bytes: usize,
    /// The size of the first bucket, in bytes: small, so that communication starts early in the backward pass.
    #[config(default = 1_048_576)]
    pub first_bucket_bytes: usize,
    /// What a parameter without a gradient means.
    #[config(default = "UnusedParameters::Refuse")]
    pub unused_parameters: UnusedParameters,
    /// How gradients are averaged: as they are, in half precision, or by low-rank approximation.
    #[config(default = "Communication::AllReduce")]
    pub communication: Communication,
    /// What happens when ranks have different numbers of batches.
    #[config(default = "UnevenInputs::Even")]
    pub uneven_inputs: UnevenInputs,
    /// Where gradients lie until they are averaged.
    #[config(default = "BucketStorage::Auto")]
    pub bucket_storage: BucketStorage,
    /// Whether buckets are reduced during the backward pass (default) or all after it, for comparison.
    #[config(default = true)]
    pub overlap: bool,
}

impl DdpConfig {
    /// Refuses what would let a rank skip a collective of a synchronized batch norm, or run it at another place in the
    /// order of collectives than the others.
    pub(crate) fn check_synchronized_layers(&self) -> Result<()> {
        let refuse = |option, reason, remedy| Err(Error::SyncBatchNormOption { option, reason, remedy });
        if matches!(self.uneven_inputs, UnevenInputs::JoinActive | UnevenInputs::JoinWorld) {
            let option = format!("UnevenInputs::{:?}", self.uneven_inputs);
            let reason =
                "a rank without data runs no forward pass, so that the others would wait for its statistics";
            return refuse(option, reason, "give all ranks equally many batches and set UnevenInputs::Even");
        }
        if self.unused_parameters == UnusedParameters::Allow && self.overlap {
            let option = "UnusedParameters::Allow with overlap".to_string();
            let reason = "a rank that leaves a parameter unused reduces its bucket later than the others, on the other side of a layer's own collective";
            return refuse(option, reason, "set overlap to false");
        }
        Ok(())
    }
}
