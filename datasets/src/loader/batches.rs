//! The iterator over an epoch's batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::data::dataloader::{DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;

use super::batch::{Batch, Epoch, HostBatch};
use super::workers::Workers;
use crate::{DataError, Scratch};

/// Batches of one epoch in order. After an error it ends; dropping it ends its workers.
pub struct Batches {
    epoch: Arc<Epoch>,
    /// The threads that load ahead; without them a batch is loaded when it is asked for.
    workers: Option<Workers>,
    scratch: Scratch,
    device: Device,
    first: usize,
    next: usize,
    end: usize,
    wait: Duration,
    /// The loader's sum over all its epochs, in nanoseconds.
    total_wait: Arc<AtomicU64>,
}

/// How an epoch's batches are to be loaded.
pub(super) struct Plan {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) workers: usize,
    pub(super) prefetch: usize,
    pub(super) timeout: Duration,
}

impl Batches {
    pub(super) fn start(epoch: Epoch, plan: Plan, device: Device, total_wait: Arc<AtomicU64>) -> Self {
        let Plan { end, prefetch, timeout, .. } = plan;
        let first = plan.first.min(end);
        let epoch = Arc::new(epoch);
        let workers = match plan.workers.min(end - first) {
            0 => None,
            count => Workers::start(&epoch, [first, end], count, prefetch, timeout)
                .inspect_err(|error| log::warn!("loading without workers, cannot start a thread: {error}"))
                .ok(),
        };
        let (scratch, wait) = Default::default();
        Self { epoch, workers, scratch, device, first, next: first, end, wait, total_wait }
    }

    /// The seconds that the consumer has spent in `next` so far: what the training loop waits for data.
    pub fn wait_seconds(&self) -> f64 {
        self.wait.as_secs_f64()
    }

    /// The number of batches that are still to come.
    pub fn remaining(&self) -> usize {
        self.end - self.next
    }

    /// Takes the next batch from its worker or loads it.
    fn next_host_batch(&mut self) -> Option<Result<HostBatch, DataError>> {
        match &self.workers {
            Some(workers) => Some(workers.receive(self.next - self.first, self.next)),
            None => self.epoch.load(self.next, &mut self.scratch, || false),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            self.workers = None;
            return None;
        }
        let started = Instant::now();
        let batch = self.next_host_batch()?.map(|batch| batch.into_batch(&self.device));
        let waited = started.elapsed();
        self.wait += waited;
        self.total_wait.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        match batch {
            Ok(_) => self.next += 1,
            Err(_) => (self.end, self.workers) = (self.next, None),
        }
        Some(batch)
    }
}

/// [`Batches`] with the error type that Burn's loaders give.
pub(super) struct BurnBatches(pub(super) Batches);

impl Iterator for BurnBatches {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|batch| batch.map_err(DatasetError::new))
    }
}

impl DataLoaderIterator<Batch> for BurnBatches {
    fn progress(&self) -> Progress {
        let total = self.0.epoch.indices.len();
        let processed = (self.0.next * self.0.epoch.batch_size).min(total);
        Progress::new(processed, total, Some("items".into()))
    }
}
