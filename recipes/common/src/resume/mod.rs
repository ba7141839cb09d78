//! Going on from a checkpoint: which one, with what changes, from which place.

mod changes;
mod choice;
mod locate;

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn_nccl_records::checkpoint::{Checkpoint, TrainingState};
use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::Images;
use crate::error::{RecipeError, Result};
use crate::options::TrainOptions;
use crate::run_folder::RunFolder;

pub use choice::ResumeChoice;
pub(crate) use locate::{CHECKPOINT_FOLDER, locate};

/// The key of the state's extras under which [`Position::schedule_offset`] is.
pub(crate) const SCHEDULE_OFFSET: &str = "schedule_offset";

/// A verified checkpoint and the run it belongs to.
pub struct Resume {
    checkpoint: Checkpoint,
    /// The folder of its run, unless it has been moved out of it.
    run: Option<PathBuf>,
}

/// Where the loop goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Optimizer steps so far.
    pub(crate) steps: usize,
    /// Epochs so far.
    pub(crate) epochs: usize,
    /// Images of all ranks so far in the epoch that follows them.
    pub(crate) images: usize,
    /// What is added to a step to find its learning rate: not zero after a change of the global batch.
    pub(crate) schedule_offset: i64,
}

impl Resume {
    /// Opens the checkpoint in `folder` and checks that it is whole.
    ///
    /// # Errors
    /// Where it is not.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let what = || format!("cannot resume from {}", folder.display());
        let checkpoint = Checkpoint::open(folder).map_err(|error| RecipeError::records(what(), error))?;
        if checkpoint.state().sampler.is_none() {
            let cause = "it does not say which images were used";
            return Err(RecipeError::usage(what(), cause, "name a checkpoint that a recipe wrote"));
        }
        let run = run_of(checkpoint.path());
        Ok(Self { checkpoint, run })
    }

    /// The state beside the tensors.
    pub(crate) fn state(&self) -> &TrainingState {
        self.checkpoint.state()
    }

    /// The folder of the run that the checkpoint belongs to.
    pub(crate) fn run(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Whether a run in `out` goes on in the folder of the checkpoint's run.
    pub(crate) fn continues_in(&self, out: &Path) -> bool {
        let canonical = |path: &Path| path.canonicalize().ok();
        self.run().is_some_and(|run| canonical(run).is_some_and(|run| Some(run) == canonical(out)))
    }

    /// What tells this checkpoint from others, for a comparison between ranks.
    pub(crate) fn identity(&self) -> Result<String> {
        let json = serde_json::to_vec(self.state())
            .map_err(|error| RecipeError::file("read", self.checkpoint.path(), error))?;
        let hash: String = Sha256::digest(json).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("step {} ({hash})", self.state().step))
    }

    /// Fits the batches to the number of ranks and says what is different from the checkpoint's run.
    ///
    /// # Errors
    /// A usage error where the options or the images do not go with the checkpoint.
    pub(crate) fn adapt(
        &self,
        config: &mut RunConfig,
        train_images: usize,
        world_size: usize,
    ) -> Result<Vec<String>> {
        let refused = |cause: String, remedy: &str| {
            Err(RecipeError::usage(
                format!("cannot resume from {}", self.checkpoint.path().display()),
                cause,
                remedy,
            ))
        };
        let (before, at) = (&self.state().config, self.sampler());
        let now = serde_json::to_value(&*config).unwrap_or_default();
        for key in ["model", "stem"] {
            if before.get(key) != now.get(key) {
                let show = |value: Option<&serde_json::Value>| {
                    value.and_then(|value| value.as_str()).unwrap_or("unknown").to_owned()
                };
                return refused(
                    format!("its --{key} is {}, not {}", show(before.get(key)), show(now.get(key))),
                    "leave the option out, or begin a new run with --weights",
                );
            }
        }
        if at.dataset_len != train_images as u64 {
            return refused(
                format!("it was trained on {} images, and now there are {train_images}", at.dataset_len),
                "give the same --data, or begin a new run with --weights",
            );
        }
        let mut notes: Vec<String> = changes::keep_global_batch(config, at, world_size).into_iter().collect();
        notes.extend(changes::changed_options(before, &now));
        Ok(notes)
    }

    /// The model of the checkpoint.
    ///
    /// # Errors
    /// Where its weights are not those of `model`.
    pub(crate) fn model<M: Module>(&self, model: &M) -> Result<M> {
        self.checkpoint.load_model(model).map_err(|error| self.unusable(error))
    }

    /// The state of the optimizer.
    ///
    /// # Errors
    /// Where it is not that of `model`, which must be the loaded one.
    pub(crate) fn optimizer<M: Module>(
        &self,
        optimizer: ModuleOptimizer,
        model: &M,
    ) -> Result<ModuleOptimizer> {
        self.checkpoint.load_optimizer(optimizer, model).map_err(|error| self.unusable(error))
    }

    /// Refuses to go on in the run's folder from a checkpoint that is not its newest: what came after it would be
    /// replaced.
    fn check_newest(&self) -> Result<()> {
        let Some(run) = self.run() else { return Ok(()) };
        let newest = locate(&ResumeChoice::Folder(run.into()), None, "")?;
        let path = self.checkpoint.path();
        match newest {
            Some(newest) if newest.file_name() != path.file_name() => Err(RecipeError::usage(
                format!("cannot resume from {} in its own folder", path.display()),
                format!("the run has gone on to {}", newest.display()),
                "resume from the run's folder, or give --out another folder to branch off",
            )),
            _ => Ok(()),
        }
    }

    fn unusable(&self, error: burn_nccl_records::Error) -> RecipeError {
        RecipeError::records(format!("cannot resume from {}", self.checkpoint.path().display()), error)
    }

    /// Where a loop with these batches goes on.
    pub(crate) fn position(&self, config: &RunConfig, world_size: usize, steps_per_epoch: usize) -> Position {
        let (state, at) = (self.state(), self.sampler());
        let steps = state.step as usize;
        let was_global_batch = at.world_size * at.batch_size * at.accumulate;
        let schedule_offset = if was_global_batch as usize == config.global_batch_size(world_size) {
            state.extra.get(SCHEDULE_OFFSET).and_then(serde_json::Value::as_i64).unwrap_or(0)
        } else {
            changes::equivalent_step(at, steps_per_epoch) as i64 - steps as i64
        };
        Position { steps, epochs: at.epoch as usize, images: at.images as usize, schedule_offset }
    }

    fn sampler(&self) -> &burn_nccl_records::checkpoint::SamplerState {
        // `open` refuses a state without one.
        self.state().sampler.as_ref().expect("the sampler's state was checked when the checkpoint was opened")
    }
}

/// The run folder that holds the checkpoint in `path`.
fn run_of(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    let run = folder.parent()?;
    (folder.file_name()? == CHECKPOINT_FOLDER && run.join("config.json").exists()).then(|| run.into())
}

/// Opens the checkpoint that the run goes on from, where there is one.
///
/// # Errors
/// Where it is not there or not whole.
pub(crate) fn open(recipe: &str, options: &TrainOptions) -> Result<Option<Resume>> {
    let found = locate(&options.resume, options.out.as_deref(), recipe)?;
    found.map(|folder| Resume::open(&folder)).transpose()
}

/// Fits the batches to the checkpoint, and says on rank 0 what is different from its run.
///
/// # Errors
/// As [`Resume::adapt`].
pub(crate) fn adapt(
    resume: Option<&Resume>,
    config: &mut RunConfig,
    images: &Images,
    rank: usize,
    world_size: usize,
) -> Result<()> {
    let Some(resume) = resume else { return Ok(()) };
    let notes = resume.adapt(config, images.train_len(), world_size)?;
    if rank == 0 {
        log::warn!("resuming after step {} from {}", resume.state().step, resume.checkpoint.path().display());
        notes.iter().for_each(|note| log::warn!("not as before: {note}"));
    }
    Ok(())
}

/// The folder of the run: the one that was asked for, that of the checkpoint, or a new one.
///
/// # Errors
/// Where a new one cannot be created.
pub(crate) fn run_folder(recipe: &str, out: Option<&Path>, resume: Option<&Resume>) -> Result<PathBuf> {
    match (out, resume.and_then(Resume::run)) {
        (Some(out), _) => Ok(out.into()),
        (None, Some(run)) => Ok(run.into()),
        (None, None) => RunFolder::claim(recipe),
    }
}

/// Makes sure that `out` holds no other run than the one that is resumed, and that nothing of that one is lost.
///
/// # Errors
/// As [`RunFolder::check_unused`]; where the run has a newer checkpoint than the one to go on from.
pub(crate) fn check_out(out: Option<&Path>, resume: Option<&Resume>) -> Result<()> {
    match (out, resume) {
        (Some(out), Some(resume)) if !resume.continues_in(out) => RunFolder::check_unused(out),
        (Some(out), None) => RunFolder::check_unused(out),
        (None, None) => Ok(()),
        (_, Some(resume)) => resume.check_newest(),
    }
}
