//! A data loader for burn-train whose batches come from a formula, and which can go wrong on request.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::Interrupter;
use serde::{Deserialize, Serialize};

use crate::data::noise;

/// Rows of one rank in one batch.
const ROWS: usize = 4;
/// Numbers in a row.
pub const FEATURES: usize = 5;
/// Classes of the targets.
pub const CLASSES: usize = 3;
/// The message of an error on request.
pub const LOADING_ERROR: &str = "an unreadable file that the test asked for";

/// A batch: inputs `[rows, 5]` and targets `[rows]`.
#[derive(Clone, Debug)]
pub struct Points {
    /// The points.
    pub inputs: Tensor<2>,
    /// Their classes.
    pub targets: Tensor<1, Int>,
}

/// What happens while a batch is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Somebody interrupts the training.
    Interruption,
    /// The batch cannot be loaded.
    LoadingError,
    /// The process ends, as if it were killed.
    Exit,
    /// The batch holds an infinity, so that the gradients of its rank overflow.
    Overflow,
}

/// An event and its time, counted from 0.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Incident {
    /// The rank on which it happens.
    pub rank: usize,
    /// The epoch.
    pub epoch: usize,
    /// The batch of the epoch.
    pub batch: usize,
    /// What happens.
    pub event: Event,
}

/// The same batches in each epoch, of each the parts of the given ranks that have so many.
#[derive(Clone)]
pub(crate) struct Loader {
    ranks: Range<usize>,
    /// Each rank's number of batches.
    batches: Vec<usize>,
    device: Device,
    incident: Option<(Incident, Interrupter)>,
    pub(crate) epochs_begun: Arc<AtomicUsize>,
    pub(crate) batches_loaded: Arc<AtomicUsize>,
}

impl Loader {
    pub(crate) fn new(ranks: Range<usize>, batches: &[usize]) -> Self {
        Self {
            ranks,
            batches: batches.to_vec(),
            device: Device::flex(),
            incident: None,
            epochs_begun: Arc::default(),
            batches_loaded: Arc::default(),
        }
    }

    pub(crate) fn with_incident(self, incident: Option<Incident>, interrupter: &Interrupter) -> Self {
        Self { incident: incident.map(|incident| (incident, interrupter.clone())), ..self }
    }

    fn num_batches(&self) -> usize {
        self.batches[self.ranks.clone()].iter().copied().max().unwrap_or(0)
    }

    fn rows(&self, batch: usize) -> impl Iterator<Item = usize> {
        let ranks = self.ranks.clone().filter(move |&rank| batch < self.batches[rank]);
        ranks.flat_map(|rank| rank * ROWS..(rank + 1) * ROWS)
    }

    /// Points whose class is told by their first features, so that there is something to learn.
    fn batch(&self, index: usize) -> Points {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in self.rows(index) {
            let first = ((index * 1000 + row) * FEATURES) as u64;
            let point: Vec<f64> = (0..FEATURES as u64).map(|i| noise(first + i)).collect();
            targets.push(i64::from(point[0] > 0.0) + i64::from(point[1] > 0.0));
            inputs.extend(point);
        }
        let rows = targets.len();
        Points {
            inputs: Tensor::from_data(TensorData::new(inputs, [rows, FEATURES]), &self.device),
            targets: Tensor::from_data(TensorData::new(targets, [rows]), &self.device),
        }
    }
}

impl DataLoader<Points> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Points> + 'a> {
        let epoch = self.epochs_begun.fetch_add(1, Ordering::SeqCst);
        Box::new(Batches { loader: self, epoch, next: 0, rows_passed: 0 })
    }

    fn num_items(&self) -> usize {
        (0..self.num_batches()).map(|batch| self.rows(batch).count()).sum()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Points>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, _: usize, _: usize) -> Arc<dyn DataLoader<Points>> {
        unreachable!("the loader of a rank is its part already")
    }
}

struct Batches<'a> {
    loader: &'a Loader,
    epoch: usize,
    next: usize,
    rows_passed: usize,
}

impl Batches<'_> {
    /// Lets happen what is due at this batch.
    fn incident(&self, mut points: Points) -> Result<Points, DatasetError> {
        let Some((incident, interrupter)) = &self.loader.incident else { return Ok(points) };
        if (incident.epoch, incident.batch) != (self.epoch, self.next) {
            return Ok(points);
        }
        match incident.event {
            Event::Interruption => interrupter.stop(Some("the test interrupts")),
            Event::LoadingError => return Err(DatasetError::new(std::io::Error::other(LOADING_ERROR))),
            Event::Exit => std::process::exit(crate::fault::FAULT_EXIT_CODE),
            Event::Overflow => points.inputs = points.inputs.mul_scalar(f32::INFINITY),
        }
        Ok(points)
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Points, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.loader.num_batches() {
            return None;
        }
        let batch = self.incident(self.loader.batch(self.next));
        self.rows_passed += self.loader.rows(self.next).count();
        self.next += 1;
        self.loader.batches_loaded.fetch_add(1, Ordering::SeqCst);
        Some(batch)
    }
}

impl DataLoaderIterator<Points> for Batches<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.rows_passed, self.loader.num_items(), None)
    }
}
