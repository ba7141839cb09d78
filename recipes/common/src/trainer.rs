//! The steps of the training loop, and what is kept from one to the next.

use std::time::Instant;

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use burn_nccl_datasets::Batch;
use burn_nccl_models::ResNet;

use crate::error::{ErrorKind, RecipeError, Result};
use crate::evaluate::{evaluate, scalar};
use crate::metrics::{Evaluation, StepBreakdown, StepRecord, StepTimes, Summary, peak_memory_bytes};
use crate::optimizer::sgd;
use crate::parameters::parameters_sha256;
use crate::progress::Plan;
use crate::recorder::Recorder;
use crate::run_folder::RunFolder;
use crate::schedule::Schedule;
use crate::train::Run;

/// A run and what has come of it so far.
pub(crate) struct Trainer {
    pub(crate) run: Run,
    criterion: CrossEntropyLoss,
    optimizer: ModuleOptimizer,
    schedule: Schedule,
    steps_per_epoch: usize,
    steps: usize,
    epochs_completed: usize,
    in_flight: Option<InFlight>,
    last_loss: f64,
    times: StepTimes,
    stop: bool,
    recorder: Option<Recorder>,
}

/// A step whose loss has not been read yet.
///
/// The loss is read one step late: reading it makes a GPU finish all its work, and by then the next step has been
/// handed to it.
struct InFlight {
    record: StepRecord,
    loss: Tensor<1>,
}

impl Trainer {
    pub(crate) fn new(run: Run) -> Self {
        let config = &run.config;
        let steps_per_epoch = run.train.num_batches();
        let total_steps = (config.epochs * steps_per_epoch).min(config.max_steps.unwrap_or(usize::MAX));
        let warmup_steps = (config.warmup_epochs * steps_per_epoch as f64).round() as usize;
        let global_batch = config.batch_size * run.parallel.world_size();
        let smoothing = (config.label_smoothing > 0.0).then_some(config.label_smoothing as f32);
        Self {
            criterion: CrossEntropyLossConfig::new().with_smoothing(smoothing).init(&run.device.device),
            optimizer: sgd(config.weight_decay),
            schedule: Schedule::scaled(config.lr, global_batch, warmup_steps, total_steps),
            steps_per_epoch,
            steps: 0,
            epochs_completed: 0,
            in_flight: None,
            last_loss: f64::NAN,
            times: StepTimes::default(),
            stop: false,
            recorder: None,
            run,
        }
    }

    fn title(&self) -> String {
        let (config, ranks) = (&self.run.config, self.run.parallel.world_size());
        let ranks = if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") };
        format!("{} on {}, {ranks} on {}", config.model, config.data, self.run.device.backend)
    }

    pub(crate) fn announce(&mut self) {
        let plan = Plan {
            title: self.title(),
            epochs: self.run.config.epochs,
            steps_per_epoch: self.steps_per_epoch,
            steps: self.schedule.total_steps,
        };
        self.run.progress.start(&plan);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop || self.steps >= self.schedule.total_steps
    }

    /// Runs an epoch, or what is left of the run.
    pub(crate) fn epoch(&mut self, epoch: usize, mut model: ResNet) -> Result<ResNet> {
        let mut batches = self.run.train.epoch(epoch - 1);
        while !self.is_over() {
            let started = Instant::now();
            let Some(batch) = batches.next() else { break };
            let batch = batch.map_err(|error| RecipeError::data("cannot load a training image", error))?;
            let data_seconds = started.elapsed().as_secs_f64();
            let (stepped, breakdown, mut step) = self.step(epoch, batch, model)?;
            model = stepped;
            if let Some(previous) = self.in_flight.take() {
                self.complete(previous)?;
            }
            let seconds = started.elapsed().as_secs_f64();
            step.record.data_wait_seconds = data_seconds;
            step.record.images_per_second = self.global_batch_size() as f64 / seconds;
            self.times.push(seconds, StepBreakdown { data: data_seconds, ..breakdown });
            self.in_flight = Some(step);
        }
        if batches.remaining() == 0 {
            self.epochs_completed = epoch;
        }
        self.in_flight.take().map_or(Ok(()), |last| self.complete(last))?;
        Ok(model)
    }

    /// Forward, backward, optimizer.
    fn step(
        &mut self,
        epoch: usize,
        batch: Batch,
        model: ResNet,
    ) -> Result<(ResNet, StepBreakdown, InFlight)> {
        let lr = self.schedule.rate(self.steps);
        let started = Instant::now();
        let forward_model = self.run.parallel.forward_model(&model)?;
        let logits = forward_model.forward(batch.images);
        let loss = self.criterion.forward(logits, batch.labels);
        let forward = started.elapsed().as_secs_f64();

        let backward = self.run.parallel.backward(&loss, &model)?;
        // What still holds the parameters keeps the optimizer from updating them in place.
        drop(forward_model);
        let loss = loss.inner();

        let started = Instant::now();
        let model = self.optimizer.step(lr, model, backward.gradients);
        let optimizer = started.elapsed().as_secs_f64();

        self.steps += 1;
        let record = StepRecord {
            step: self.steps,
            epoch,
            loss: f64::NAN,
            lr,
            images_per_second: 0.0,
            data_wait_seconds: 0.0,
            comm_exposed_seconds: backward.exposed_seconds,
        };
        let breakdown = StepBreakdown {
            data: 0.0,
            forward,
            backward: backward.seconds,
            comm_exposed: backward.exposed_seconds,
            optimizer,
        };
        Ok((model, breakdown, InFlight { record, loss }))
    }

    /// Reads the loss of a step, shares it with the other ranks and records it.
    fn complete(&mut self, step: InFlight) -> Result<()> {
        let InFlight { mut record, loss } = step;
        let wants_stop = f64::from(u8::from(self.run.progress.stop_requested()));
        let mut sums = [scalar::<f64>(loss.try_into_data())?, wants_stop];
        self.run.parallel.sum_f64(&mut sums)?;
        // All ranks see the same sums, so they stop, and fail, in the same step.
        record.loss = sums[0] / self.run.parallel.world_size() as f64;
        self.stop |= sums[1] > 0.0;
        if !record.loss.is_finite() {
            let why = format!("the loss is {} with learning rate {:.4}", record.loss, record.lr);
            return Err(self.diverged(record.step, why));
        }
        self.last_loss = record.loss;
        if self.run.parallel.rank() == 0 {
            self.recorder()?.step(&record)?;
        }
        self.run.progress.step(&record);
        Ok(())
    }

    fn diverged(&self, step: usize, why: String) -> RecipeError {
        let error = RecipeError::failure(
            format!("training diverged at step {step}"),
            why,
            format!("use a smaller --lr than {} or a longer --warmup-epochs", self.run.config.lr),
        );
        // Every rank fails with this; one of them says so.
        let kind = if self.run.parallel.rank() == 0 { ErrorKind::Failure } else { ErrorKind::Consequence };
        RecipeError { kind, ..error }
    }

    /// Classifies the test images.
    pub(crate) fn test(&mut self, epoch: usize, model: &ResNet) -> Result<Evaluation> {
        let evaluation =
            evaluate(&model.valid(), &self.run.test, &self.run.device.device, &self.run.parallel)?;
        let step = self.steps;
        if !evaluation.loss.is_finite() {
            let why = format!("the test loss is {}", evaluation.loss);
            return Err(self.diverged(step, why));
        }
        if self.run.parallel.rank() == 0 {
            self.recorder()?.evaluation(step, &evaluation)?;
        }
        self.run.progress.evaluation(epoch, &evaluation);
        Ok(evaluation)
    }

    /// Rank 0's records, started by the first call.
    fn recorder(&mut self) -> Result<&mut Recorder> {
        let recorder = match self.recorder.take() {
            Some(recorder) => recorder,
            None => Recorder::create(RunFolder::create(&self.run.out)?, &self.run.config)?,
        };
        Ok(self.recorder.insert(recorder))
    }

    /// Saves the results.
    pub(crate) fn finish(mut self, model: ResNet, evaluation: Evaluation) -> Result<Summary> {
        let model = model.valid();
        let title = format!("{}: {:.2}% test accuracy", self.title(), evaluation.accuracy() * 100.0);
        let run = &self.run;
        let summary = Summary {
            recipe: run.recipe.into(),
            backend: run.device.backend.into(),
            device: run.device.name.clone(),
            world_size: run.parallel.world_size(),
            model: run.config.model.to_string(),
            parameters: model.parameters_count(),
            steps: self.steps,
            epochs: self.epochs_completed,
            images_per_second: self.times.images_per_second(self.global_batch_size()),
            step_seconds_median: self.times.median(),
            train_loss_final: self.last_loss,
            test_accuracy: evaluation.accuracy(),
            test_examples: evaluation.examples,
            peak_memory_bytes: peak_memory_bytes(),
            parameters_sha256: parameters_sha256(&model),
            seconds_total: run.started.elapsed().as_secs_f64(),
            step_breakdown: self.times.mean_breakdown(),
        };
        let recorder = self.recorder()?;
        recorder.finish(model, &title, &summary)?;
        let folder = recorder.folder().path().to_path_buf();
        self.run.progress.finish(&summary, &folder);
        Ok(summary)
    }

    fn global_batch_size(&self) -> usize {
        self.run.config.batch_size * self.run.parallel.world_size()
    }
}
