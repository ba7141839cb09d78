//! The images of a run.

use burn::tensor::Device;
use burn_nccl_datasets::{ImageDataset, Loader, LoaderConfig, Sampling, Split};
use std::sync::Arc;

use crate::config::RunConfig;
use crate::error::{RecipeError, Result};

/// Training and test images, open.
#[derive(Clone)]
pub struct Images {
    train: Arc<dyn ImageDataset>,
    test: Arc<dyn ImageDataset>,
}

impl Images {
    /// Opens the images of `config`.
    ///
    /// # Errors
    /// Where a folder or file is missing, unreadable or not what it should be.
    pub fn open(config: &RunConfig) -> Result<Self> {
        let open = |split: Split| {
            let what = format!("cannot open the {} images of {}", split.name(), config.data);
            config.data.load(split).map_err(|error| RecipeError::data(what, error))
        };
        Ok(Self { train: open(Split::Train)?, test: open(Split::Test)? })
    }

    /// Number of classes.
    pub fn num_classes(&self) -> usize {
        self.train.num_classes()
    }

    /// Number of training images.
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// A loader of this rank's share of the training images: shuffled, augmented, whole batches only, so that all
    /// ranks take the same number of steps.
    ///
    /// # Errors
    /// Where there are fewer images than ranks, or no whole batch.
    pub fn train_loader(
        &self,
        config: &RunConfig,
        device: &Device,
        rank: usize,
        world_size: usize,
    ) -> Result<Loader> {
        LoaderConfig::new(config.batch_size)
            .with_workers(config.workers)
            .with_seed(config.seed)
            .with_shuffle(true)
            .with_drop_last(true)
            .with_rank(rank)
            .with_world_size(world_size)
            .with_transforms(config.data.train_transforms(config.image_size))
            .init(self.train.clone(), device)
            .map_err(|error| RecipeError::data(format!("cannot train on {}", config.data), error))
    }

    /// A loader of this rank's share of the test images, each image once over all ranks.
    ///
    /// # Errors
    /// Where there are no test images.
    pub fn test_loader(
        &self,
        config: &RunConfig,
        device: &Device,
        rank: usize,
        world_size: usize,
    ) -> Result<Loader> {
        LoaderConfig::new(config.batch_size)
            .with_workers(config.workers)
            .with_rank(rank)
            .with_world_size(world_size)
            .with_sampling(Sampling::Exact)
            .with_transforms(config.data.eval_transforms(config.image_size))
            .init(self.test.clone(), device)
            .map_err(|error| RecipeError::data(format!("cannot test on {}", config.data), error))
    }
}
