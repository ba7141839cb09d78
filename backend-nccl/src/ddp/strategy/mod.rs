//! burn-train: the learner, metrics, checkpointers, early stopping and dashboard of Burn, on every rank of a group.

mod epoch;
mod renderer;

use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataloader::Progress;
use burn::train::logger::InMemoryMetricLogger;
use burn::train::train::WorkerFailure;
use burn::train::{
    EventProcessorTraining, Interrupter, Learner, LearnerEvent, LearnerModel, SupervisedLearningStrategy,
    SupervisedTraining, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingError,
    TrainingStrategy, ValidLoader,
};

use super::{CommunicationHook, DdpConfig, DistributedDataParallel};
use crate::amp::{Autocast, GradScaler, Precision};
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::sync_batch_norm;
use crate::transport::{DType, ReduceOp};
use epoch::{TrainEpoch, valid_epoch};
use renderer::SilentRenderer;

/// A burn-train strategy that trains one model with all ranks of a group.
///
/// Every rank runs the same program; [`install`](Self::install) is the only line that differs from training on one
/// device:
///
/// - **Training data** differs per rank: give each rank's loader its part (a distributed sampler). Progress and
///   iterations count all ranks.
/// - **Validation** runs whole on every rank at the same time, so that no rank waits longer than a deadline and all
///   see the same metrics. Running statistics are rank 0's.
/// - **Training metrics** are those of rank 0's part of the data, which a shuffling sampler makes a fair sample.
/// - **Dashboard, log files and checkpoints** are rank 0's; the other ranks keep their metrics in memory. A metric or
///   progress logger of your own writes wherever it is registered: register it on rank 0 only.
/// - **A model on several devices** stays there; batches go to the device of its first parameter.
/// - **Resuming** reads the checkpoint on every rank, so the folder must be on a file system that all ranks see.
/// - **Early stopping and interruption**: rank 0 decides on early stopping; an interruption or an error on any rank
///   ends all ranks at the same step. [`LearningResult::error`](burn::train::LearningResult) tells why.
/// - **Synchronized batch norm** layers of the model are connected to the group.
/// - **Gradient accumulation** averages micro-batches, unlike Burn's own strategies, which sum them.
/// - **Clipping by norm**, which Burn's optimizers do on each rank by itself, is safe on backends that find the same norm
///   of the same gradients on every rank. On GPUs it may differ in its last bits, and the replicas drift apart:
///   clip by value there, or in a training loop of your own with [`ClipGradNormConfig`](crate::amp::ClipGradNormConfig).
/// - **Loss scaling** is added by [`with_grad_scaler`](Self::with_grad_scaler).
pub struct DdpStrategy {
    group: ProcessGroup,
    config: DdpConfig,
    autocast: Autocast,
    scaler: Option<Arc<Mutex<GradScaler>>>,
    hook: Option<NewHook>,
}

/// Makes a communication hook for one training.
type NewHook = Arc<dyn Fn() -> Box<dyn CommunicationHook> + Send + Sync>;

impl DdpStrategy {
    /// A strategy for the ranks of `group`.
    pub fn new(group: &ProcessGroup, config: DdpConfig) -> Self {
        let (group, autocast) = (group.clone(), Autocast::new(Precision::F32));
        Self { group, config, autocast, scaler: None, hook: None }
    }

    /// Runs each training step on the half copy of the model that `autocast` makes; validation stays in f32. The step
    /// itself widens what must not run in half, as [`amp`](crate::amp) tells. What the backend lacks is an error before
    /// the first step.
    #[must_use]
    pub fn with_autocast(self, autocast: Autocast) -> Self {
        Self { autocast, ..self }
    }

    /// Unscales the reduced gradients with `scaler`, takes or skips the optimizer step on all ranks alike, and updates
    /// the scale. The model's `TrainStep` multiplies its loss by the scaler's [`LossScale`](crate::amp::LossScale)
    /// before its backward pass; a `#[module(skip)]` field can hold it.
    ///
    /// - The learning rate schedule stands still in a skipped step, as PyTorch advises: it counts optimizer steps.
    /// - Burn's checkpoints do not hold the scaler's state. It stays readable through `scaler` for a checkpoint of
    ///   your own; load it before a resumed training starts.
    /// - [`Error::LossScaleFloor`](crate::Error::LossScaleFloor) ends training on all ranks.
    #[must_use]
    pub fn with_grad_scaler(self, scaler: Arc<Mutex<GradScaler>>) -> Self {
        scaler.lock().unwrap_or_else(PoisonError::into_inner).set_group(&self.group);
        Self { scaler: Some(scaler), ..self }
    }

    /// Averages gradients by a hook of your own, which `new_hook` makes when training starts. See
    /// [`DistributedDataParallel::with_communication_hook`].
    #[must_use]
    pub fn with_communication_hook(
        self,
        new_hook: impl Fn() -> Box<dyn CommunicationHook> + Send + Sync + 'static,
    ) -> Self {
        Self { hook: Some(Arc::new(new_hook)), ..self }
    }

    /// The wrapped model.
    fn wrap<M: LearnerModel>(&self, model: M) -> Result<(DistributedDataParallel, M)> {
        let (mut ddp, model) = match &self.hook {
            None => DistributedDataParallel::new(model, &self.group, &self.config)?,
            Some(hook) => {
                DistributedDataParallel::with_communication_hook(model, &self.group, &self.config, hook())?
            }
        };
        if let Some(scaler) = &self.scaler {
            ddp.set_loss_scale(scaler.lock().unwrap_or_else(PoisonError::into_inner).loss_scale());
        }
        Ok((ddp, model))
    }

    /// Makes `training` run with this strategy. Call it last: on ranks other than 0 it replaces the renderer and the
    /// application logger, and adds a metric logger in memory, without which Burn would log to files.
    pub fn install<M: LearnerModel>(self, training: SupervisedTraining<M>) -> SupervisedTraining<M> {
        let is_main = self.group.rank() == 0;
        let training = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(self)));
        if is_main {
            return training;
        }
        training
            .renderer(Box::new(SilentRenderer))
            .with_application_logger(None)
            .with_metric_logger(InMemoryMetricLogger::new())
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DdpStrategy {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let mut session = Session {
            group: &self.group,
            interrupter: components.interrupter.clone(),
            processor: components.event_processor,
        };
        let device = learner.model().devices().into_iter().next().unwrap_or_default();
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        // A model that was placed on several devices would be gathered on one of them, which may not hold it.
        if learner.model().devices().len() <= 1 {
            learner.fork(&device);
        }
        let train = TrainEpoch {
            loader: dataloader_train.to_device(&device),
            accumulation: components.grad_accumulation.unwrap_or(1),
            uneven_inputs: self.config.uneven_inputs,
            autocast: self.autocast.clone(),
            scaler: self.scaler.clone(),
        };
        let valid = dataloader_valid.to_device(&device.clone().inner());
        let mut checkpointer = components.checkpointer.filter(|_| self.group.rank() == 0);
        let mut early_stopping = components.early_stopping;

        let outcome = (|| {
            self.autocast.check(&learner.model(), &device)?;
            self.autocast.check_ranks(&self.group)?;
            let (mut ddp, model) = self.wrap(learner.model())?;
            // The learner keeps its own module and takes values only, so its layers are connected here.
            sync_batch_norm::connecting(&self.group, || learner.load_model(model.into_record()));
            for epoch in starting_epoch..=components.num_epochs {
                train.run(epoch, &mut learner, &mut ddp, &mut session)?;
                if session.any_rank_stops()? {
                    return Ok(());
                }
                learner.load_model(ddp.sync_buffers(learner.model())?.into_record());
                valid_epoch(epoch, &learner, &valid, &mut session);
                session.emit(|processor| processor.process_train(LearnerEvent::EndEpoch(epoch)));
                session.emit(EventProcessorTraining::flush);
                // Before the checkpoint: a validation that broke off has no metrics to choose or keep one by.
                if session.any_rank_stops()? {
                    return Ok(());
                }
                if let Some(checkpointer) = &mut checkpointer {
                    checkpointer.checkpoint(&learner, epoch, &components.event_store);
                }
                let done = early_stopping
                    .as_mut()
                    .is_some_and(|strategy| strategy.should_stop(epoch, &components.event_store));
                if session.decided_by_rank_0(done)? {
                    return Ok(());
                }
            }
            Ok(())
        })();
        if let Err(error) = outcome {
            // The caller may keep the group, so that the others would wait for this rank until the deadline.
            self.group.abort(&format!("rank {} left the training: {error}", self.group.rank()));
            session.fail(&error);
        }
        (learner.model(), session.processor)
    }
}

/// What a run carries through its epochs.
struct Session<'a, M: LearnerModel> {
    group: &'a ProcessGroup,
    interrupter: Interrupter,
    processor: SupervisedTrainingEventProcessor<M>,
}

impl<M: LearnerModel> Session<'_, M> {
    fn emit<E: Into<TrainingError>>(
        &mut self,
        event: impl FnOnce(&mut SupervisedTrainingEventProcessor<M>) -> std::result::Result<(), E>,
    ) {
        self.interrupter.fail_on_error(event(&mut self.processor));
    }

    fn fail(&self, error: &Error) {
        let failure = WorkerFailure { device_id: self.group.rank(), message: error.to_string() };
        self.interrupter.fail(TrainingError::Workers(vec![failure]));
    }

    /// Whether any rank was interrupted or failed; if so, this rank stops too.
    fn any_rank_stops(&self) -> Result<bool> {
        let mut stop = [u8::from(self.interrupter.should_stop())];
        self.group.all_reduce(&mut stop, DType::U8, ReduceOp::Max)?;
        let stops = stop[0] != 0;
        if stops && !self.interrupter.should_stop() {
            self.interrupter.stop(Some("another rank stopped"));
        }
        Ok(stops)
    }

    fn decided_by_rank_0(&self, own: bool) -> Result<bool> {
        let mut decision = [u8::from(own)];
        self.group.broadcast(&mut decision, DType::U8, 0)?;
        Ok(decision[0] != 0)
    }

    /// Progress over all ranks, from this rank's.
    fn global(&self, mut progress: Progress) -> Progress {
        progress.items_processed *= self.group.world_size();
        progress.items_total *= self.group.world_size();
        progress
    }
}
