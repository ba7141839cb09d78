//! The training loop's state, to a checkpoint and from one.

use burn_nccl_models::ResNet;
use burn_nccl_records::checkpoint::{SamplerState, TrainingState};
use serde_json::{Map, Value, json};

use super::Trainer;
use crate::error::{RecipeError, Result};
use crate::metrics::Evaluation;
use crate::optimizer::sgd;
use crate::plot::Curves;
use crate::recorder::Resumed;
use crate::resume::{Resume, SCHEDULE_OFFSET, SKIPPED_STEPS, skipped_steps};

const LAST_LOSS: &str = "last_loss";

impl Trainer {
    /// Takes over what `resume` holds besides the weights, which `model` has already.
    pub(super) fn resume(&mut self, resume: &Resume, model: &ResNet) -> Result<()> {
        let state = resume.state();
        self.optimizer = resume.optimizer(sgd(self.run.config.weight_decay), model)?;
        self.mixed_precision.resume(state.scaler.as_ref(), skipped_steps(state))?;
        self.last_loss = state.extra.get(LAST_LOSS).and_then(Value::as_f64).unwrap_or(f64::NAN);
        self.resumed_from = Some(self.at.steps);
        self.saved_at = self.run.continues.then_some(self.at.steps);
        self.resumed = Some(Resumed {
            step: self.at.steps,
            curves: serde_json::from_value::<Curves>(state.history.clone()).unwrap_or_default(),
            run: resume.run().map(Into::into),
        });
        Ok(())
    }

    /// Makes the records of the run folder those of this run: all ranks together, and before anything there is changed,
    /// since another job may be writing.
    pub(super) fn take_over(&mut self) -> Result<()> {
        if self.resumed.is_none() {
            // It was interrupted before its first checkpoint.
            self.resumed = Some(Resumed { step: 0, curves: Curves::default(), run: None });
        }
        self.checkpoints.open(&self.run.out, self.run.parallel.group()).map(drop)
    }

    /// Writes a checkpoint of `model`, which has taken `self.at.steps` steps, if one is due at the end of an epoch or of
    /// the run.
    pub(crate) fn save_if_due(&mut self, model: &ResNet, evaluation: &Evaluation) -> Result<()> {
        let ended = (self.at.images == 0).then_some(self.at.epochs);
        let is_over = self.is_over() || self.at.epochs >= self.run.config.epochs;
        if self.checkpoints.is_due(self.at.steps, ended, is_over) {
            self.save(model, Some(evaluation))?;
        }
        Ok(())
    }

    /// Whether the run has checkpoints.
    pub(crate) fn has_checkpoints(&self) -> bool {
        self.checkpoints.are_wanted()
    }

    /// Writes a checkpoint of `model`, which has taken `self.at.steps` steps.
    pub(super) fn save(&mut self, model: &ResNet, evaluation: Option<&Evaluation>) -> Result<()> {
        // A loss that is not finite ends the run before such weights are kept.
        self.complete_last()?;
        self.saved_at = Some(self.at.steps);
        let state = self.training_state(evaluation)?;
        let group = self.run.parallel.group();
        self.checkpoints.save(model, &self.optimizer, state, &self.run.out, group)
    }

    /// Returns on all ranks once the last checkpoint is on disk.
    pub(crate) fn finish_checkpoints(&mut self) -> Result<()> {
        self.checkpoints.finish()
    }

    fn training_state(&self, evaluation: Option<&Evaluation>) -> Result<TrainingState> {
        let json = |value: serde_json::Result<Value>| {
            value.map_err(|error| RecipeError::from_text("cannot write a checkpoint", &error.to_string()))
        };
        let (config, world_size) = (&self.run.config, self.run.parallel.world_size() as u64);
        let curves = self.recorder.as_ref().map(|recorder| recorder.curves().thinned());
        let mut extra = Map::new();
        extra.insert(SCHEDULE_OFFSET.into(), json!(self.at.schedule_offset));
        extra.insert(SKIPPED_STEPS.into(), json!(self.mixed_precision.skipped_steps().unwrap_or(0)));
        extra.insert(LAST_LOSS.into(), json!(self.last_loss));
        Ok(TrainingState {
            step: self.at.steps as u64,
            epoch: self.at.epochs as u64,
            sampler: Some(SamplerState {
                epoch: self.at.epochs as u64,
                images: self.at.images as u64,
                seed: config.seed,
                dataset_len: self.run.train.dataset().len() as u64,
                world_size,
                batch_size: config.batch_size as u64,
                accumulate: config.accumulate as u64,
            }),
            scaler: self.mixed_precision.state(),
            metric: evaluation.map(Evaluation::accuracy),
            config: json(serde_json::to_value(config))?,
            history: json(serde_json::to_value(curves.unwrap_or_default()))?,
            extra,
        })
    }
}
