//! The loader itself, with Burn's `DataLoader` on it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use burn::tensor::Device;

use super::batch::{Batch, Epoch};
use super::batches::{Batches, BurnBatches, Plan};
use super::config::LoaderConfig;
use crate::{DistributedSampler, ImageDataset};

/// Loads a rank's share of a dataset, epoch by epoch, ahead of the training loop.
///
/// The batches of an epoch depend on the settings, the epoch and the rank only: not on the number of
/// workers, and not on what was loaded before. A loop of one's own asks for [`epoch`](Self::epoch) or,
/// to go on in the middle of one, [`iter_from`](Self::iter_from). Burn's learner calls
/// [`iter`](DataLoader::iter), which gives epoch 0, then 1, and so on from
/// [`set_epoch`](Self::set_epoch).
pub struct Loader {
    config: LoaderConfig,
    dataset: Arc<dyn ImageDataset>,
    /// The dataset's indices that this loader draws from.
    range: Range<usize>,
    sampler: DistributedSampler,
    device: Device,
    next_epoch: AtomicUsize,
    total_wait: Arc<AtomicU64>,
}

impl Loader {
    pub(super) fn new(
        config: LoaderConfig,
        dataset: Arc<dyn ImageDataset>,
        sampler: DistributedSampler,
        device: Device,
    ) -> Self {
        let range = 0..dataset.len();
        let (next_epoch, total_wait) = Default::default();
        Self { config, dataset, range, sampler, device, next_epoch, total_wait }
    }

    /// The batches of an epoch, counted from 0.
    pub fn epoch(&self, epoch: usize) -> Batches {
        self.iter_from(epoch, 0)
    }

    /// The batches of an epoch from number `first_batch` on, the same as those that
    /// [`epoch`](Self::epoch) gives after `first_batch` others; those are not loaded.
    pub fn iter_from(&self, epoch: usize, first_batch: usize) -> Batches {
        self.batches(epoch, 0, first_batch)
    }

    /// The batches of what is left of an epoch after `images` images, those of all ranks together.
    ///
    /// Other than [`iter_from`](Self::iter_from) it goes on after a run with another number of ranks or another batch
    /// size, see [`DistributedSampler::indices_from`]. There may be no batch left.
    pub fn epoch_from(&self, epoch: usize, images: usize) -> Batches {
        self.batches(epoch, images, 0)
    }

    fn batches(&self, epoch: usize, start: usize, first_batch: usize) -> Batches {
        let mut indices = self.sampler.indices_from(epoch, start);
        indices.truncate(self.whole_batches(indices.len()));
        indices.iter_mut().for_each(|index| *index += self.range.start);
        let plan = Plan {
            first: first_batch,
            end: indices.len().div_ceil(self.config.batch_size),
            workers: self.config.workers,
            prefetch: self.config.prefetch,
            timeout: Duration::from_secs(self.config.timeout_seconds),
        };
        let epoch = Epoch {
            dataset: self.dataset.clone(),
            transforms: self.config.transforms.clone(),
            seed: self.config.seed,
            number: epoch,
            indices,
            batch_size: self.config.batch_size,
        };
        Batches::start(epoch, plan, self.device.clone(), self.total_wait.clone())
    }

    /// The epoch that the next [`iter`](DataLoader::iter) gives; it counts on from there.
    ///
    /// For a resumed run: set it before the learner starts. Loaders made by `to_device` and `slice`
    /// take over the count and then count for themselves.
    pub fn set_epoch(&self, epoch: usize) {
        self.next_epoch.store(epoch, Ordering::Relaxed);
    }

    /// The number of batches per epoch on this rank.
    pub fn num_batches(&self) -> usize {
        self.num_items().div_ceil(self.config.batch_size)
    }

    /// The seconds that consumers have spent waiting for batches, over all epochs of this loader and of
    /// those made from it by `to_device` and `slice`.
    pub fn wait_seconds(&self) -> f64 {
        Duration::from_nanos(self.total_wait.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// The images behind the loader.
    pub fn dataset(&self) -> &Arc<dyn ImageDataset> {
        &self.dataset
    }

    /// The loader's settings.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Of so many images, those that are loaded.
    fn whole_batches(&self, images: usize) -> usize {
        if self.config.drop_last { images - images % self.config.batch_size } else { images }
    }

    /// The same loader on part of the dataset and on `device`.
    fn derive(&self, range: Range<usize>, device: &Device) -> Self {
        Self {
            config: self.config.clone(),
            dataset: self.dataset.clone(),
            sampler: self.sampler.with_len(range.len()),
            range,
            device: device.clone(),
            next_epoch: AtomicUsize::new(self.next_epoch.load(Ordering::Relaxed)),
            total_wait: self.total_wait.clone(),
        }
    }
}

impl DataLoader<Batch> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        let epoch = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(BurnBatches(self.epoch(epoch)))
    }

    /// The number of images this rank gets per epoch.
    fn num_items(&self) -> usize {
        self.whole_batches(self.sampler.num_samples())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(self.derive(self.range.clone(), device))
    }

    /// The same loader on images `start` to `end` (exclusive) of its dataset, which its ranks then share.
    /// Bounds past the end are cut; a range without images gives a loader without batches.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Batch>> {
        let end = self.range.end.min(self.range.start.saturating_add(end));
        let start = end.min(self.range.start.saturating_add(start));
        Arc::new(self.derive(start..end, &self.device))
    }
}
