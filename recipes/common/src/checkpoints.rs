//! When a run writes checkpoints, and the writing of them.

use std::path::Path;

use burn::optim::ModuleOptimizer;
use burn_nccl::ProcessGroup;
use burn_nccl_models::ResNet;
use burn_nccl_records::Error as RecordsError;
use burn_nccl_records::checkpoint::{
    Best, CheckpointConfig, CheckpointFailure as FolderFailure, Checkpointer, OnFailure, TrainingState,
};

use crate::config::CheckpointPlan;
use crate::error::{RecipeError, Result};
use crate::options::CheckpointFailure;
use crate::resume::CHECKPOINT_FOLDER;
use crate::warning::warn_once;

/// The checkpoints of a run, on one of its ranks.
pub(crate) struct Checkpoints {
    plan: CheckpointPlan,
    /// From the first checkpoint on.
    checkpointer: Option<Checkpointer>,
    longest_pause: Option<f64>,
    /// Whether the folder could not be used, in a run that goes on without.
    is_given_up: bool,
}

impl Checkpoints {
    pub(crate) fn new(plan: CheckpointPlan) -> Self {
        Self { plan, checkpointer: None, longest_pause: None, is_given_up: false }
    }

    /// Whether there are to be any.
    pub(crate) fn are_wanted(&self) -> bool {
        self.plan.checkpoint_epochs > 0 || self.plan.checkpoint_steps.is_some()
    }

    /// Whether there is to be a checkpoint after `steps` steps; `epoch` is the one, counted from 1, that they end.
    pub(crate) fn is_due(&self, steps: usize, epoch: Option<usize>, is_over: bool) -> bool {
        let CheckpointPlan { checkpoint_epochs: epochs, checkpoint_steps, .. } = self.plan;
        let by_steps = checkpoint_steps.is_some_and(|every| steps.is_multiple_of(every));
        let by_epoch = epochs > 0 && (is_over || epoch.is_some_and(|epoch| epoch.is_multiple_of(epochs)));
        by_steps || by_epoch || is_over && checkpoint_steps.is_some()
    }

    /// Takes the folder for this run, in which no other may write then. All ranks call it together.
    ///
    /// # Errors
    /// Where another run writes there, or the folder cannot be made.
    /// None where there are to be no checkpoints, because the folder cannot be used and a run is to go on all the same.
    pub(crate) fn open(
        &mut self,
        run: &Path,
        group: Option<&ProcessGroup>,
    ) -> Result<Option<&mut Checkpointer>> {
        if self.is_given_up {
            return Ok(None);
        }
        if self.checkpointer.is_none() {
            let goes_on = self.plan.on_checkpoint_failure == CheckpointFailure::Continue;
            let config = CheckpointConfig {
                keep_last: self.plan.keep_last,
                keep_best: self.plan.keep_best,
                best: Best::Highest,
                on_failure: if goes_on { OnFailure::Continue } else { OnFailure::Stop },
                ..Default::default()
            };
            match Checkpointer::open(run.join(CHECKPOINT_FOLDER), config, group) {
                Ok(open) => self.checkpointer = Some(open),
                // All ranks have the same error. With another job in the folder it is not a matter of checkpoints.
                Err(RecordsError::CheckpointFolder { failure, folder })
                    if goes_on && failure != FolderFailure::InUse =>
                {
                    warn_once(&format!(
                        "there will be no checkpoints in {}: {failure}; training goes on",
                        folder.display()
                    ));
                    self.is_given_up = true;
                }
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(self.checkpointer.as_mut())
    }

    /// Writes a checkpoint while training goes on. All ranks call it together.
    ///
    /// # Errors
    /// Where this one or the one before it cannot be written, on all ranks.
    pub(crate) fn save(
        &mut self,
        model: &ResNet,
        optimizer: &ModuleOptimizer,
        state: TrainingState,
        run: &Path,
        group: Option<&ProcessGroup>,
    ) -> Result<()> {
        let Some(checkpointer) = self.open(run, group)? else { return Ok(()) };
        checkpointer.save(model, optimizer, state).map_err(refused)?;
        let pause = checkpointer.pause_seconds();
        self.longest_pause = Some(self.longest_pause.map_or(pause, |longest| longest.max(pause)));
        Ok(())
    }

    /// Returns on all ranks once the last one is on disk.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.checkpointer.take().map_or(Ok(()), |open| open.finish().map_err(refused))
    }

    /// The longest time that training stood still for one.
    pub(crate) fn longest_pause(&self) -> Option<f64> {
        self.longest_pause
    }
}

fn refused(error: RecordsError) -> RecipeError {
    RecipeError::records("cannot write a checkpoint", error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    fn due(options: &[&str], steps: usize, epoch: Option<usize>, is_over: bool) -> bool {
        Checkpoints::new(config(options).checkpoints).is_due(steps, epoch, is_over)
    }

    #[test]
    fn each_epoch_has_a_checkpoint_unless_told_otherwise() {
        assert!(due(&[], 23, Some(1), false) && due(&[], 46, Some(2), false));
        assert!(!due(&[], 22, None, false));
        // A run that ends within an epoch can be gone on with.
        assert!(due(&[], 5, None, true));
    }

    #[test]
    fn the_last_epoch_has_one_whatever_the_cadence() {
        // C14: five epochs, every second.
        let saved: Vec<usize> = (1..=5)
            .filter(|&epoch| due(&["--checkpoint-epochs=2"], epoch * 10, Some(epoch), epoch == 5))
            .collect();
        assert_eq!(saved, [2, 4, 5]);
        assert!(due(&["--checkpoint-epochs=0", "--checkpoint-steps=7"], 10, Some(1), true));
    }

    #[test]
    fn steps_count_within_epochs_and_zero_epochs_means_none() {
        let every_seven = ["--checkpoint-epochs=0", "--checkpoint-steps=7"];
        assert!(due(&every_seven, 14, None, false));
        assert!(!due(&every_seven, 15, Some(1), false));
        assert!(!due(&["--checkpoint-epochs=0"], 15, Some(1), true));
        let wanted = |options: &[&str]| Checkpoints::new(config(options).checkpoints).are_wanted();
        assert!(wanted(&every_seven) && wanted(&[]) && !wanted(&["--checkpoint-epochs=0"]));
    }
}
