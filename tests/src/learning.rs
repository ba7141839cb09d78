//! burn-train: a small classifier under its learner, by all ranks or by one process on the joined batches.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::DataLoader;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::tensor::Device;
use burn::tensor::activation::relu;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Interrupter, Learner, MetricEarlyStoppingStrategy,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_nccl::amp::{Autocast, GradScaler, GradScalerConfig, LossScale, match_dtype, widen};
use burn_nccl::ddp::{DdpStrategy, UnevenInputs};
use burn_nccl::{DdpConfig, Error, ProcessGroup, SyncBatchNorm, SyncBatchNormConfig};
use serde::{Deserialize, Serialize};

use crate::fingerprint::{parameters, sha256};
use crate::loader::{CLASSES, FEATURES, Incident, Loader, Points};
use crate::model::fill;
use crate::report::Learned;
use crate::training::{self, Backend, Precision, criterion, device, group, optimizer};

const TIMEOUT_SECONDS: u64 = 60;
const HIDDEN: usize = 8;

/// A training with burn-train.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Learning {
    /// Each rank's folder of metrics and checkpoints.
    pub directories: Vec<PathBuf>,
    /// Each rank's number of batches.
    pub batches: Vec<usize>,
    /// Whether one process trains on the joined batches, with the strategy that Burn takes by itself.
    pub joined: bool,
    /// The last epoch.
    pub epochs: usize,
    /// The epoch to go on after.
    pub resume: Option<usize>,
    /// The learning rate at the start; it falls to a tenth.
    pub rate: f64,
    /// Micro-batches per optimizer step.
    pub accumulation: Option<usize>,
    /// What the ranks compute in.
    pub precision: burn_nccl::amp::Precision,
    /// What ranks with fewer batches do.
    pub uneven_inputs: UnevenInputs,
    /// Whether training stops when the validation loss has not *grown* for two epochs, which is in the third.
    pub early_stopping: bool,
    /// Whether the classifier normalises with the batches of all ranks.
    pub synchronized_norm: bool,
    /// Whether the classifier's last layer is on a device of its own.
    pub two_devices: bool,
    /// How each rank scales its loss; nothing for no scaling.
    pub scaling: Vec<GradScalerConfig>,
    /// What happens while a batch to train on is loaded.
    pub incident: Option<Incident>,
    /// What happens while a batch to validate on is loaded.
    pub validation_incident: Option<Incident>,
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
        let ranks = if self.joined { 0..self.batches.len() } else { rank..rank + 1 };
        let here = |incident: &Incident| incident.rank == rank && !self.joined;
        let loader =
            Loader::new(ranks, &self.batches).with_incident(self.incident.filter(here), &interrupter);
        let (epochs, batches) = (loader.epochs_begun.clone(), loader.batches_loaded.clone());
        let scaler = self.scaler(rank)?;
        let loss_scale = scaler.as_ref().map(|scaler| scaler.lock().expect("nobody panicked").loss_scale());
        let training = self.training(loader, interrupter, &group, scaler.clone());
        let rate =
            LinearLrSchedulerConfig::new(self.rate, self.rate / 10.0, 24).init().expect("rates in range");
        let model = self.classifier(rank as u64, loss_scale, &device);
        let result = training.launch(Learner::new(model, optimizer(), rate));
        Ok(Learned {
            parameters: parameters(&result.model),
            sha256: sha256(&result.model),
            devices: result.model.devices().len(),
            epochs: epochs.load(Ordering::SeqCst),
            batches: batches.load(Ordering::SeqCst),
            interrupted: result.interrupted.is_some(),
            error: result.error.map(|error| error.to_string()),
            scaling: scaler.map(|scaler| {
                let scaler = scaler.lock().expect("nobody panicked");
                (scaler.loss_scale().factor(), scaler.skipped_steps())
            }),
        })
    }

    fn classifier(&self, seed: u64, loss_scale: Option<LossScale>, device: &Device) -> Classifier {
        let last = if self.two_devices {
            training::device(Backend::NdArray, Precision::Single)
        } else {
            device.clone()
        };
        let model = Classifier {
            hidden: LinearConfig::new(FEATURES, HIDDEN).init(device),
            norm: self.synchronized_norm.then(|| SyncBatchNormConfig::new(HIDDEN).init(device)),
            output: LinearConfig::new(HIDDEN, CLASSES).init(&last),
            loss_scale,
        };
        fill(model, seed)
    }

    fn scaler(&self, rank: usize) -> Result<Option<Arc<Mutex<GradScaler>>>, Error> {
        let scaler = self.scaling.get(rank).map(GradScalerConfig::init).transpose()?;
        Ok(scaler.map(|scaler| Arc::new(Mutex::new(scaler))))
    }

    fn training(
        &self,
        loader: Loader,
        interrupter: Interrupter,
        group: &ProcessGroup,
        scaler: Option<Arc<Mutex<GradScaler>>>,
    ) -> SupervisedTraining<Classifier> {
        let incident = self.validation_incident.filter(|incident| incident.rank == group.rank());
        let valid = Loader::new(0..self.batches.len(), &self.batches).with_incident(incident, &interrupter);
        let mut training = SupervisedTraining::new(
            &self.directories[group.rank()],
            Arc::new(loader) as Arc<dyn DataLoader<Points>>,
            Arc::new(valid) as Arc<dyn DataLoader<Points>>,
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
        if let Some(micro_batches) = self.accumulation {
            training = training.grads_accumulation(micro_batches);
        }
        if self.joined {
            return training;
        }
        let mut strategy = DdpStrategy::new(group, DdpConfig::new().with_uneven_inputs(self.uneven_inputs))
            .with_autocast(Autocast::new(self.precision));
        if let Some(scaler) = scaler {
            strategy = strategy.with_grad_scaler(scaler);
        }
        strategy.install(training)
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

/// Two linear layers, and a norm that may be absent.
#[derive(Module, Debug)]
pub struct Classifier {
    hidden: Linear,
    norm: Option<SyncBatchNorm>,
    output: Linear,
    #[module(skip)]
    loss_scale: Option<LossScale>,
}

impl Classifier {
    fn classify(&self, points: Points) -> ClassificationOutput {
        let hidden = self.hidden.forward(match_dtype(points.inputs, &self.hidden.weight.val()));
        let hidden = match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        };
        let hidden = relu(hidden).to_device(&self.output.weight.device());
        // Back to the targets, whose integers have the type that the metrics of that backend expect.
        let logits = widen(self.output.forward(hidden)).to_device(&points.targets.device());
        let loss = criterion(&logits.device()).forward(logits.clone(), points.targets.clone());
        ClassificationOutput::new(loss, logits, points.targets)
    }
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(points);
        let mut loss = output.loss.clone();
        if let Some(loss_scale) = &self.loss_scale {
            loss = loss_scale.scale(loss);
        }
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> ClassificationOutput {
        self.classify(points)
    }
}
