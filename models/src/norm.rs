use burn::nn::Initializer;
use burn::tensor::Device;
use burn_nccl::{SyncBatchNorm, SyncBatchNormConfig};
use serde::{Deserialize, Serialize};

/// Which normalisation follows each convolution; epsilon 1e-5, momentum 0.1.
///
/// Training normalises with the statistics of the batch, whereas evaluation uses the running ones, whose variance is
/// the unbiased one, as PyTorch's. Both layers have the same parameters and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NormConfig {
    /// Batch normalisation with the statistics of this process's batch.
    #[default]
    Batch,
    /// Batch normalisation with the statistics of all ranks' batches, once data-parallel training or
    /// [`connect`](burn_nccl::sync_batch_norm::connect) has given the model a group.
    SyncBatch,
}

impl NormConfig {
    /// Makes a norm layer with gamma 1, beta 0, running mean 0 and running variance 1.
    ///
    /// # Panics
    ///
    /// If `num_features` is zero.
    pub fn init(&self, num_features: usize, device: &Device) -> SyncBatchNorm {
        // Burn and PyTorch agree on what momentum 0.1 means: the weight of the new batch.
        SyncBatchNormConfig::new(num_features).with_synchronized(*self == Self::SyncBatch).init(device)
    }
}

/// Sets gamma to zero, so that a residual block that ends in `layer` starts as the identity.
pub(crate) fn with_zero_gamma(mut layer: SyncBatchNorm) -> SyncBatchNorm {
    let gamma = &layer.norm.gamma;
    layer.norm.gamma = Initializer::Zeros.init(gamma.lazy_shape(), &gamma.lazy_device());
    layer
}
