//! The loader's settings.

use std::sync::Arc;

use burn::config::Config;
use burn::tensor::Device;

use super::dataloader::Loader;
use crate::{DataError, DistributedSampler, ImageDataset, Pipeline, Sampling};

/// Settings of a [`Loader`].
///
/// For training: shuffle, and drop the last partial batch, so that all ranks take the same number of
/// equally large steps. For evaluation: neither, and [`Sampling::Exact`].
#[derive(Config, Debug)]
pub struct LoaderConfig {
    /// Images per batch and rank.
    pub batch_size: usize,
    /// Threads that load batches ahead; with 0 a batch is loaded when it is asked for.
    #[config(default = 1)]
    pub workers: usize,
    /// Batches that each worker may be ahead, at least 1.
    #[config(default = 2)]
    pub prefetch: usize,
    /// Seed of the order and of the random transforms; equal on all ranks.
    #[config(default = 0)]
    pub seed: u64,
    /// Whether each epoch has its own random order.
    #[config(default = false)]
    pub shuffle: bool,
    /// Whether a last batch of fewer than `batch_size` images is left out.
    #[config(default = false)]
    pub drop_last: bool,
    /// This process among those that share the dataset.
    #[config(default = 0)]
    pub rank: usize,
    /// The number of processes that share the dataset.
    #[config(default = 1)]
    pub world_size: usize,
    /// What happens when the images do not divide evenly among the ranks.
    #[config(default = "Sampling::Pad")]
    pub sampling: Sampling,
    /// What is done to each image; all must come out with one shape.
    #[config(default = "Pipeline::default()")]
    pub transforms: Pipeline,
    /// Seconds after which a batch that does not arrive is an error.
    #[config(default = 300)]
    pub timeout_seconds: u64,
}

impl LoaderConfig {
    /// A loader of these images for `device`.
    ///
    /// # Errors
    ///
    /// [`DataError::ZeroBatchSize`], [`DataError::EmptyDataset`], [`DataError::ZeroWorldSize`],
    /// [`DataError::RankOutOfRange`] and [`DataError::InvalidTransform`];
    /// [`DataError::FewerImagesThanRanks`] unless sampling is exact; [`DataError::NoFullBatch`] when
    /// `drop_last` would leave no batch at all. Each is raised on all ranks or, for a bad rank, on that one.
    pub fn init(&self, dataset: Arc<dyn ImageDataset>, device: &Device) -> Result<Loader, DataError> {
        if self.batch_size == 0 {
            return Err(DataError::ZeroBatchSize);
        }
        if dataset.is_empty() {
            return Err(DataError::EmptyDataset);
        }
        self.transforms.validate()?;
        let images = dataset.len();
        let sampler = DistributedSampler::new(images, self.rank, self.world_size, self.sampling)?;
        let exact = self.sampling == Sampling::Exact;
        if images < self.world_size && !exact {
            return Err(DataError::FewerImagesThanRanks { images, world_size: self.world_size });
        }
        // The rank with the fewest images decides, so that no rank starts an epoch that another refuses.
        let samples = if exact { images / self.world_size } else { sampler.num_samples() };
        if self.drop_last && samples < self.batch_size {
            return Err(DataError::NoFullBatch { samples, batch_size: self.batch_size });
        }
        let sampler = if self.shuffle { sampler.with_shuffle(self.seed) } else { sampler };
        Ok(Loader::new(self.clone(), dataset, sampler, device.clone()))
    }
}
