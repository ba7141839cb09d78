//! What a run leaves behind.

use burn::module::Module;
use burn_nccl_models::ResNet;

use super::Trainer;
use crate::device::device_transport;
use crate::error::{ErrorKind, RecipeError, Result};
use crate::metrics::{Evaluation, Summary, peak_memory_bytes};
use crate::parameters::parameters_sha256;
use crate::recorder::Recorder;
use crate::resume::{CHECKPOINT_FOLDER, newest_of, open_checkpoint};
use crate::run_folder::RunFolder;
use crate::train::Ended;

impl Trainer {
    /// Rank 0's records, started by the first call.
    pub(super) fn recorder(&mut self) -> Result<&mut Recorder> {
        let recorder = match self.recorder.take() {
            Some(recorder) => recorder,
            None => self.new_recorder()?,
        };
        Ok(self.recorder.insert(recorder))
    }

    fn new_recorder(&mut self) -> Result<Recorder> {
        let (out, config) = (&self.run.out, &self.run.config);
        let folder = if self.run.continues { RunFolder::existing(out) } else { RunFolder::create(out)? };
        match self.resumed.take() {
            None => Recorder::create(folder, config),
            Some(resumed) => Recorder::resume(folder, config, resumed),
        }
    }

    /// Saves the results.
    pub(crate) fn finish(&mut self, model: ResNet, evaluation: Evaluation) -> Result<Summary> {
        let model = model.valid();
        let title = format!("{}: {:.2}% test accuracy", self.title(), evaluation.accuracy() * 100.0);
        let summary = self.summary(&model, Some(&evaluation));
        let config = self.run.config.model(self.run.train.dataset().num_classes());
        let recorder = self.recorder()?;
        recorder.finish(&config, &model, &title, &summary)?;
        let folder = recorder.folder().path().to_path_buf();
        self.run.progress.finish(&summary, &folder);
        Ok(summary)
    }

    /// Ends a run that a signal has stopped, on all ranks after the same step: with a checkpoint to go on from.
    ///
    /// The checkpoint comes first, because who sent the signal may not wait for long.
    ///
    /// # Errors
    /// Where there is no checkpoint to go on from, on all ranks.
    pub(crate) fn interrupt(&mut self, model: ResNet) -> Result<Ended> {
        self.interrupted = true;
        if self.saved_at != Some(self.at.steps) {
            self.save(&model, None)?;
        }
        self.finish_checkpoints()?;
        let mut can_go_on = [0];
        if self.run.parallel.rank() == 0 {
            let from = self.newest_step()?;
            self.record_interruption(&model, from)?;
            can_go_on[0] = i64::from(from.is_some());
        }
        // Together: a launcher may end rank 0 when it sees another one leave.
        self.run.parallel.sum_i64(&mut can_go_on)?;
        if can_go_on[0] > 0 { Ok(Ended::Interrupted) } else { Err(self.lost()) }
    }

    /// The step that `--resume auto` goes on from: the last one, unless its checkpoint could not be written and the run was
    /// to go on without.
    fn newest_step(&self) -> Result<Option<usize>> {
        let (out, last) = (&self.run.out, self.at.steps);
        if out.join(CHECKPOINT_FOLDER).join(format!("step-{last}/manifest.json")).exists() {
            return Ok(Some(last));
        }
        let newest = newest_of(out)?.map(|newest| open_checkpoint(&newest)).transpose()?;
        Ok(newest.map(|newest| newest.state().step as usize))
    }

    fn record_interruption(&mut self, model: &ResNet, from: Option<usize>) -> Result<()> {
        let (summary, steps) = (self.summary(&model.valid(), None), self.at.steps);
        let title = format!("{}: stopped after step {steps}", self.title());
        let recorder = self.recorder()?;
        recorder.interrupt(&title, &summary)?;
        let folder = recorder.folder().path().to_path_buf();
        self.run.progress.finish(&summary, &folder);
        let stopped = format!("a signal has stopped the run after step {steps}");
        match from {
            Some(from) if from == steps => {
                log::warn!("{stopped}; go on with --resume auto --out {}", folder.display());
            }
            Some(from) => log::warn!(
                "{stopped}, of which there is no checkpoint; --resume auto --out {} goes on from step {from}",
                folder.display()
            ),
            None => {}
        }
        Ok(())
    }

    fn lost(&self) -> RecipeError {
        let error = RecipeError::failure(
            format!("a signal has stopped the run after step {}, and it cannot go on", self.at.steps),
            "no checkpoint could be written",
            "mend what the warnings name, and begin the run again",
        );
        // Every rank fails with this; one of them says so.
        let kind = if self.run.parallel.rank() == 0 { ErrorKind::Failure } else { ErrorKind::Consequence };
        RecipeError { kind, ..error }
    }

    fn summary(&self, model: &ResNet, evaluation: Option<&Evaluation>) -> Summary {
        let run = &self.run;
        let transport = run.parallel.group().and_then(device_transport);
        let (nccl_version, stream_ordering) =
            transport.map(|transport| (transport.nccl_version, transport.stream_ordering)).unzip();
        Summary {
            recipe: run.recipe.into(),
            backend: run.device.backend.into(),
            device: run.device.name.clone(),
            gpu: run.device.gpu.as_ref().map(|gpu| gpu.name.clone()),
            nccl_version,
            stream_ordering,
            bucket_storage: run.parallel.bucket_storage().filter(|_| run.device.backend == "cuda"),
            world_size: run.parallel.world_size(),
            model: run.config.model.to_string(),
            precision: self.mixed_precision.precision().to_string(),
            norm: run.config.norm().name(),
            batch_size: run.config.batch_size,
            accumulate: run.config.accumulate,
            global_batch_size: run.config.global_batch_size(run.parallel.world_size()),
            parameters: model.parameters_count(),
            steps: self.at.steps,
            resumed_from_step: self.resumed_from,
            checkpoint_pause_seconds: self.checkpoints.longest_pause(),
            epochs: self.at.epochs,
            images_per_second: self.times.images_per_second(),
            step_seconds_median: self.times.median(),
            train_loss_final: self.last_loss,
            loss_scale_final: self.mixed_precision.loss_scale(),
            skipped_steps: self.mixed_precision.skipped_steps(),
            interrupted: self.interrupted,
            test_accuracy: evaluation.map(Evaluation::accuracy),
            test_examples: evaluation.map_or(0, |evaluation| evaluation.examples),
            peak_memory_bytes: peak_memory_bytes(),
            parameters_sha256: parameters_sha256(model),
            seconds_total: run.started.elapsed().as_secs_f64(),
            step_breakdown: self.times.mean_breakdown(),
        }
    }
}
