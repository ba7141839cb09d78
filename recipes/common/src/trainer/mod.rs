//! The steps of the training loop, and what is kept from one to the next.

mod checkpoint;
mod results;

use std::time::Instant;

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use burn_nccl::accumulation::{Accumulation, Pass};
use burn_nccl::amp::{Precision, widen};
use burn_nccl_datasets::{Batch, Batches};
use burn_nccl_models::ResNet;
use burn_nccl_records::checkpoint::step_seed;

use crate::batch_statistics::{check_statistics, small_batch_warning};
use crate::checkpoints::Checkpoints;
use crate::error::{ErrorKind, RecipeError, Result};
use crate::evaluate::{evaluate, scalar};
use crate::metrics::{Evaluation, StepBreakdown, StepRecord, StepTimes};
use crate::mixed_precision::MixedPrecision;
use crate::optimizer::sgd;
use crate::progress::Plan;
use crate::recorder::{Recorder, Resumed};
use crate::resume::Position;
use crate::run_folder::RunFolder;
use crate::schedule::Schedule;
use crate::stop;
use crate::train::Run;

/// A run and what has come of it so far.
pub(crate) struct Trainer {
    pub(crate) run: Run,
    criterion: CrossEntropyLoss,
    optimizer: ModuleOptimizer,
    schedule: Schedule,
    steps_per_epoch: usize,
    /// Where the run is: `steps`, `epochs` and `images` count on.
    at: Position,
    /// The step with which the run ends.
    last_step: usize,
    resumed_from: Option<usize>,
    checkpoints: Checkpoints,
    mixed_precision: MixedPrecision,
    in_flight: Option<InFlight>,
    last_loss: f64,
    times: StepTimes,
    stop: bool,
    /// Whether a signal has asked one of the ranks to stop.
    interrupted: bool,
    /// The step of the last checkpoint.
    saved_at: Option<usize>,
    /// Whether rank 0 writes files.
    pub(crate) records: bool,
    recorder: Option<Recorder>,
    /// What the recorder begins with.
    resumed: Option<Resumed>,
}

/// A step whose losses, one per batch of its window, have not been read yet.
///
/// They are read one step late: reading makes a GPU finish all its work, and by then the next step has been
/// handed to it.
struct InFlight {
    record: StepRecord,
    losses: Vec<Tensor<1>>,
}

/// What a step did besides changing the weights.
struct Stepped {
    images: usize,
    breakdown: StepBreakdown,
    in_flight: InFlight,
}

impl Trainer {
    /// Prepares to train `model`.
    ///
    /// # Errors
    /// Where the device cannot compute in the precision that is asked for, or a batch is too small to normalise.
    pub(crate) fn new(mut run: Run, model: &ResNet) -> Result<Self> {
        let batches = run.train.num_batches();
        if run.config.accumulate > batches {
            if run.parallel.rank() == 0 {
                log::warn!(
                    "an epoch has {batches} batches, so that --accumulate is {batches} and not {}",
                    run.config.accumulate
                );
            }
            run.config.accumulate = batches;
        }
        let config = &run.config;
        check_statistics(config, run.parallel.world_size())?;
        // A shorter window ends each epoch whose batches do not come out even.
        let steps_per_epoch = batches.div_ceil(config.accumulate);
        let resume = run.resume.take();
        let world_size = run.parallel.world_size();
        let global_batch = config.global_batch_size(world_size);
        let at = resume.as_ref().map(|resume| resume.position(global_batch, steps_per_epoch));
        let at = at.unwrap_or_default();
        // After a change of the global batch, the schedule's steps are not the run's.
        let in_epochs =
            config.epochs.saturating_mul(steps_per_epoch).saturating_add_signed(-at.schedule_offset as isize);
        let last_step = in_epochs.min(config.max_steps.unwrap_or(usize::MAX));
        let warmup_steps = (config.warmup_epochs * steps_per_epoch as f64).round() as usize;
        let smoothing = (config.label_smoothing > 0.0).then_some(config.label_smoothing as f32);
        let mixed_precision =
            MixedPrecision::new(config.mixed_precision.as_ref(), model, &run.device, run.parallel.group())?;
        run.parallel.set_loss_scale(mixed_precision.shared_loss_scale());
        let mut trainer = Self {
            mixed_precision,
            criterion: CrossEntropyLossConfig::new().with_smoothing(smoothing).init(&run.device.device),
            optimizer: sgd(config.weight_decay),
            schedule: Schedule::scaled(config.lr, global_batch, warmup_steps, at.scheduled(last_step)),
            steps_per_epoch,
            at,
            last_step,
            resumed_from: None,
            checkpoints: Checkpoints::new(config.checkpoints.clone()),
            in_flight: None,
            last_loss: f64::NAN,
            times: StepTimes::default(),
            stop: false,
            interrupted: false,
            saved_at: None,
            records: true,
            recorder: None,
            resumed: None,
            run,
        };
        if let Some(resume) = resume {
            trainer.resume(&resume, model)?;
        }
        if trainer.run.continues {
            trainer.take_over()?;
        }
        Ok(trainer)
    }

    fn title(&self) -> String {
        let (config, world_size) = (&self.run.config, self.run.parallel.world_size());
        let ranks = if world_size == 1 { "1 rank".into() } else { format!("{world_size} ranks") };
        let global = config.global_batch_size(world_size);
        let accumulated = if config.accumulate == 1 {
            String::new()
        } else {
            format!(" x {} accumulated", config.accumulate)
        };
        let precision = match self.mixed_precision.precision() {
            Precision::F32 => String::new(),
            half => format!(" in {half}"),
        };
        format!(
            "{} on {}, {ranks} on {}{precision}, global batch {global} ({} a rank{accumulated})",
            config.model, config.data, self.run.device.backend, config.batch_size
        )
    }

    pub(crate) fn announce(&mut self) {
        if self.run.parallel.rank() == 0
            && let Some(warning) = small_batch_warning(&self.run.config, self.run.parallel.world_size())
        {
            log::warn!("{warning}");
        }
        let plan = Plan {
            title: self.title(),
            epochs: self.run.config.epochs,
            steps_per_epoch: self.steps_per_epoch,
            steps: self.last_step,
        };
        self.run.progress.start(&plan);
    }

    /// Whether a signal has ended the run.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop || self.interrupted || self.at.steps >= self.last_step
    }

    /// Whether this run goes on with one that has ended, and has nothing to add to it: on all ranks, as rank 0 finds it.
    pub(crate) fn is_complete(&mut self) -> Result<bool> {
        let has_ended = self.is_over() || self.epoch_now() > self.run.config.epochs;
        if !self.run.continues || !has_ended {
            return Ok(false);
        }
        let is_recorder = self.run.parallel.rank() == 0;
        let mut complete = [i64::from(is_recorder && RunFolder::existing(&self.run.out).has_ended())];
        self.run.parallel.sum_i64(&mut complete)?;
        if is_recorder && complete[0] > 0 {
            log::warn!(
                "the run in {} has ended at step {}: there is nothing left to train; for more, give a larger --epochs or \
                 --max-steps",
                self.run.out.display(),
                self.at.steps
            );
        }
        Ok(complete[0] > 0)
    }

    /// The epoch in which the run is, counted from 1.
    pub(crate) fn epoch_now(&self) -> usize {
        self.at.epochs + 1
    }

    /// Runs what is left of the epoch, or of the run.
    pub(crate) fn epoch(&mut self, mut model: ResNet) -> Result<ResNet> {
        let epoch = self.epoch_now();
        let mut batches = self.run.train.epoch_from(self.at.epochs, self.at.images);
        while !self.is_over() {
            let started = Instant::now();
            let Some(batch) = next(&mut batches)? else { break };
            let data = started.elapsed().as_secs_f64();
            let (stepped_model, stepped) = self.step(epoch, batch, data, &mut batches, model)?;
            model = stepped_model;
            if let Some(previous) = self.in_flight.take() {
                self.complete(previous)?;
            }
            let seconds = started.elapsed().as_secs_f64();
            let mut step = stepped.in_flight;
            step.record.images_per_second = stepped.images as f64 / seconds;
            self.times.push(seconds, stepped.images, stepped.breakdown);
            self.in_flight = Some(step);
            self.at.images += stepped.images;
            let is_within = batches.remaining() > 0 && !self.is_over();
            if self.records && is_within && self.checkpoints.is_due(self.at.steps, None, false) {
                self.save(&model, None)?;
            }
        }
        if batches.remaining() == 0 {
            (self.at.epochs, self.at.images) = (epoch, 0);
        }
        self.complete_last()?;
        Ok(model)
    }

    /// Reads the loss of the step before, where there is one.
    fn complete_last(&mut self) -> Result<()> {
        self.in_flight.take().map_or(Ok(()), |last| self.complete(last))
    }

    /// Forward and backward for each batch of a window that begins with `batch`, then the optimizer.
    fn step(
        &mut self,
        epoch: usize,
        mut batch: Batch,
        data_seconds: f64,
        batches: &mut Batches,
        model: ResNet,
    ) -> Result<(ResNet, Stepped)> {
        // The schedule counts what changed the weights, so that skipped steps at the start do not eat the warm-up.
        let skipped = self.mixed_precision.skipped_steps().unwrap_or(0) as usize;
        let lr = self.schedule.rate(self.at.scheduled(self.at.steps).saturating_sub(skipped));
        // What a layer draws is a function of seed, step and rank, so that a resumed run draws the same.
        let (seed, rank) = (self.run.config.seed, self.run.parallel.rank());
        self.run.device.device.seed(step_seed(seed, self.at.steps as u64, rank as u64));
        let mut breakdown = StepBreakdown { data: data_seconds, ..Default::default() };
        let mut losses = Vec::with_capacity(self.run.config.accumulate);
        let mut window = Accumulation::new(self.run.config.accumulate);
        let gradients = loop {
            let following = window.next(batches.remaining() == 0) == Pass::Keep;
            let (forward_model, loss) = timed(&mut breakdown.forward, || self.forward(batch, &model))?;
            let scaled = self.mixed_precision.scale(loss.clone());
            let backward = match following {
                true => self.run.parallel.accumulate(&scaled, &model)?,
                false => self.run.parallel.backward(&scaled, &model)?,
            };
            // What still holds the parameters keeps the optimizer from updating them in place.
            drop((forward_model, scaled));
            losses.push(loss.inner());
            breakdown.backward += backward.seconds;
            breakdown.comm_exposed += backward.exposed_seconds;
            match (backward.gradients, timed(&mut breakdown.data, || following.then(|| next(batches)))) {
                (Some(gradients), _) => break gradients,
                (None, Some(following)) => batch = following?.ok_or_else(ended_early)?,
                (None, None) => return Err(ended_early()),
            }
        };
        let optimizer = &mut self.optimizer;
        let (model, outcome) =
            timed(&mut breakdown.optimizer, || self.mixed_precision.step(optimizer, lr, model, gradients))?;
        self.at.steps += 1;
        let record = StepRecord {
            step: self.at.steps,
            epoch,
            loss: f64::NAN,
            lr,
            images_per_second: 0.0,
            data_wait_seconds: breakdown.data,
            comm_exposed_seconds: breakdown.comm_exposed,
            loss_scale: outcome.loss_scale,
            skipped: outcome.skipped,
            grad_norm: outcome.grad_norm,
        };
        let images = losses.len() * self.run.config.batch_size * self.run.parallel.world_size();
        Ok((model, Stepped { images, breakdown, in_flight: InFlight { record, losses } }))
    }

    /// The copy of `model` that the forward pass ran on, and its loss.
    fn forward(&self, batch: Batch, model: &ResNet) -> Result<(ResNet, Tensor<1>)> {
        let forward_model = self.mixed_precision.cast(self.run.parallel.forward_model(model)?)?;
        // Softmax and loss are formed in f32.
        let logits = widen(forward_model.forward(batch.images));
        let loss = self.criterion.forward(logits, batch.labels);
        Ok((forward_model, loss))
    }

    /// Reads the loss of a step, shares it with the other ranks and records it.
    fn complete(&mut self, step: InFlight) -> Result<()> {
        let InFlight { mut record, losses } = step;
        let wants_stop = f64::from(u8::from(self.run.progress.stop_requested()));
        // It travels with the loss, so that agreeing on it costs nothing.
        let mut sums = [0.0, wants_stop, f64::from(u8::from(stop::is_requested()))];
        let window = losses.len() as f64;
        for loss in losses {
            sums[0] += scalar::<f64>(loss.try_into_data())? / window;
        }
        self.run.parallel.sum_f64(&mut sums)?;
        // All ranks see the same sums, so they stop, and fail, in the same step.
        record.loss = sums[0] / self.run.parallel.world_size() as f64;
        self.stop |= sums[1] > 0.0;
        self.interrupted |= sums[2] > 0.0;
        if record.loss.is_finite() {
            self.last_loss = record.loss;
        } else if record.skipped != Some(true) {
            let why = format!("the loss is {} with learning rate {:.4}", record.loss, record.lr);
            return Err(self.diverged(record.step, why));
        }
        if self.records && self.run.parallel.rank() == 0 {
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

    /// Classifies the test images, unless a signal ends the run.
    pub(crate) fn test(&mut self, epoch: usize, model: &ResNet) -> Result<Option<Evaluation>> {
        let evaluation =
            evaluate(&model.valid(), &self.run.test, &self.run.device.device, &self.run.parallel)?;
        let Some(evaluation) = evaluation else { return Ok(None) };
        let step = self.at.steps;
        if !evaluation.loss.is_finite() {
            let why = format!("the test loss is {}", evaluation.loss);
            return Err(self.diverged(step, why));
        }
        if self.run.parallel.rank() == 0 {
            self.recorder()?.evaluation(step, &evaluation)?;
        }
        self.run.progress.evaluation(epoch, &evaluation);
        Ok(Some(evaluation))
    }
}

/// The next batch, where there is one.
fn next(batches: &mut Batches) -> Result<Option<Batch>> {
    batches.next().transpose().map_err(|error| RecipeError::data("cannot load a training image", error))
}

fn ended_early() -> RecipeError {
    RecipeError::failure(
        "cannot finish a step",
        "the loader has fewer batches than it announced",
        "report it",
    )
}

/// Adds the seconds that `run` takes to `seconds`.
fn timed<T>(seconds: &mut f64, run: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let output = run();
    *seconds += started.elapsed().as_secs_f64();
    output
}
