//! burn-train: a small classifier under its learner, by all ranks or by one process on the joined batches.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Interrupter, Learner, MetricEarlyStoppingStrategy,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_nccl::ddp::DdpStrategy;
use burn_nccl::{DdpConfig, Error};
use serde::{Deserialize, Serialize};

use crate::data::noise;
use crate::fingerprint::{parameters, sha256};
use crate::model::fill;
use crate::report::Learned;
use crate::training::{Backend, Precision, criterion, device, group, optimizer};

/// Batches of an epoch.
pub const BATCHES: usize = 6;
const ROWS: usize = 4;
const FEATURES: usize = 5;
const CLASSES: usize = 3;
const TIMEOUT_SECONDS: u64 = 60;

/// A training with burn-train.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Learning {
    /// Each rank's folder of metrics and checkpoints.
    pub directories: Vec<PathBuf>,
    /// Whether one process trains on the joined batches, with the strategy that Burn takes by itself.
    pub joined: bool,
    /// The last epoch.
    pub epochs: usize,
    /// The epoch to go on after.
    pub resume: Option<usize>,
    /// Whether training stops when the validation loss has not *grown* for two epochs, which is in the third.
    pub early_stopping: bool,
    /// The rank that interrupts the training, in which epoch and batch, both from 0.
    pub interruption: Option<(usize, usize, usize)>,
}

impl Learning {
    /// Trains as one of the ranks, or alone on what all would see.
    ///
    /// # Errors
    /// What the group returns. An error of the training is in the result.
    pub fn run(&self) -> Result<Learned, Error> {
        let device = device(Backend::Flex, Precision::Single);
        let group = group(TIMEOUT_SECONDS)?;
        let rank = group.rank();
        let interrupter = Interrupter::new();
        let parts = 0..self.directories.len();
        let mut train = Loader::new(if self.joined { parts.clone() } else { rank..rank + 1 });
        train.interruption = self
            .interruption
            .filter(|(by, ..)| *by == rank)
            .map(|(_, epoch, batch)| (epoch, batch, interrupter.clone()));
        let (epochs, batches) = (train.epochs.clone(), train.batches.clone());
        let mut training = SupervisedTraining::new(
            &self.directories[rank],
            Arc::new(train) as Arc<dyn DataLoader<Points>>,
            Arc::new(Loader::new(parts)) as Arc<dyn DataLoader<Points>>,
        )
        .metrics((LossMetric::new(), AccuracyMetric::new()))
        .with_default_checkpointers()
        .with_interrupter(interrupter)
        .num_epochs(self.epochs);
        if self.early_stopping {
            training = training.early_stopping(no_growth_for_two_epochs());
        }
        if let Some(epoch) = self.resume {
            training = training.checkpoint(epoch);
        }
        if !self.joined {
            training = DdpStrategy::new(&group, DdpConfig::new()).install(training);
        }
        let rate = LinearLrSchedulerConfig::new(0.2, 0.02, 24).init().expect("rates in range");
        let result = training.launch(Learner::new(Classifier::new(rank as u64, &device), optimizer(), rate));
        Ok(Learned {
            parameters: parameters(&result.model),
            sha256: sha256(&result.model),
            epochs: epochs.load(Ordering::SeqCst),
            batches: batches.load(Ordering::SeqCst),
            interrupted: result.interrupted.is_some(),
            error: result.error.map(|error| error.to_string()),
        })
    }
}

fn no_growth_for_two_epochs() -> MetricEarlyStoppingStrategy {
    MetricEarlyStoppingStrategy::new(
        &LossMetric::new(),
        Aggregate::Mean,
        Direction::Highest,
        Split::Valid,
        StoppingCondition::NoImprovementSince { n_epochs: 2 },
    )
}

/// Two linear layers.
#[derive(Module, Debug)]
pub struct Classifier {
    hidden: Linear,
    output: Linear,
}

impl Classifier {
    fn new(seed: u64, device: &Device) -> Self {
        let model = Self {
            hidden: LinearConfig::new(FEATURES, 8).init(device),
            output: LinearConfig::new(8, CLASSES).init(device),
        };
        fill(model, seed)
    }

    fn classify(&self, points: Points) -> ClassificationOutput {
        let logits = self.output.forward(relu(self.hidden.forward(points.inputs)));
        let loss = criterion(&logits.device()).forward(logits.clone(), points.targets.clone());
        ClassificationOutput::new(loss, logits, points.targets)
    }
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(points);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> ClassificationOutput {
        self.classify(points)
    }
}

/// A batch: inputs `[rows, 5]` and targets `[rows]`.
#[derive(Clone, Debug)]
pub struct Points {
    inputs: Tensor<2>,
    targets: Tensor<1, Int>,
}

/// The same [`BATCHES`] batches in each epoch, of each the given ranks' parts.
#[derive(Clone)]
struct Loader {
    parts: std::ops::Range<usize>,
    device: Device,
    interruption: Option<(usize, usize, Interrupter)>,
    epochs: Arc<AtomicUsize>,
    batches: Arc<AtomicUsize>,
}

impl Loader {
    fn new(parts: std::ops::Range<usize>) -> Self {
        Self {
            parts,
            device: Device::flex(),
            interruption: None,
            epochs: Arc::default(),
            batches: Arc::default(),
        }
    }

    fn rows(&self) -> usize {
        ROWS * self.parts.len()
    }

    /// Points whose class is told by their first features, so that there is something to learn.
    fn batch(&self, index: usize) -> Points {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in self.parts.clone().flat_map(|part| (part * ROWS)..(part + 1) * ROWS) {
            let first = ((index * 1000 + row) * FEATURES) as u64;
            let point: Vec<f64> = (0..FEATURES as u64).map(|i| noise(first + i)).collect();
            targets.push(i64::from(point[0] > 0.0) + i64::from(point[1] > 0.0));
            inputs.extend(point);
        }
        let rows = self.rows();
        Points {
            inputs: Tensor::from_data(TensorData::new(inputs, [rows, FEATURES]), &self.device),
            targets: Tensor::from_data(TensorData::new(targets, [rows]), &self.device),
        }
    }
}

impl DataLoader<Points> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Points> + 'a> {
        Box::new(Batches { loader: self, epoch: self.epochs.fetch_add(1, Ordering::SeqCst), next: 0 })
    }

    fn num_items(&self) -> usize {
        BATCHES * self.rows()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Points>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, _: usize, _: usize) -> Arc<dyn DataLoader<Points>> {
        unimplemented!("the loader of a rank is its part already")
    }
}

struct Batches<'a> {
    loader: &'a Loader,
    epoch: usize,
    next: usize,
}

impl Iterator for Batches<'_> {
    type Item = Result<Points, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == BATCHES {
            return None;
        }
        if let Some((epoch, batch, interrupter)) = &self.loader.interruption
            && (*epoch, *batch) == (self.epoch, self.next)
        {
            interrupter.stop(Some("the test interrupts"));
        }
        let batch = self.loader.batch(self.next);
        self.next += 1;
        self.loader.batches.fetch_add(1, Ordering::SeqCst);
        Some(Ok(batch))
    }
}

impl DataLoaderIterator<Points> for Batches<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.next * self.loader.rows(), self.loader.num_items(), None)
    }
}
