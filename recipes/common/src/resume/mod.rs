//! Going on from a checkpoint: which one, with what changes, from which place.

mod changes;
mod choice;
mod locate;
mod together;

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn_nccl_records::checkpoint::{Checkpoint, SamplerState, TrainingState};
use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::data::Images;
use crate::error::{RecipeError, Result};
use crate::options::TrainOptions;
use crate::run_folder::RunFolder;

pub(crate) use changes::{Position, SCHEDULE_OFFSET, SKIPPED_STEPS, skipped_steps};
pub use choice::ResumeChoice;
pub(crate) use locate::{CHECKPOINT_FOLDER, locate, newest_of};
pub(crate) use together::follow_rank_0;

/// A verified checkpoint and the run it belongs to.
pub struct Resume {
    checkpoint: Checkpoint,
    sampler: SamplerState,
    /// The folder of its run, unless it has been moved out of it.
    run: Option<PathBuf>,
}

/// Opens a checkpoint and checks that it is whole.
///
/// # Errors
/// Where it is not.
pub(crate) fn open_checkpoint(folder: &Path) -> Result<Checkpoint> {
    Checkpoint::open(folder).map_err(|error| RecipeError::records(cannot_resume(folder), error))
}

fn cannot_resume(folder: &Path) -> String {
    format!("cannot resume from {}", folder.display())
}

impl Resume {
    /// Opens the checkpoint in `folder`.
    ///
    /// # Errors
    /// Where it is not whole, or not one of a recipe.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let checkpoint = open_checkpoint(folder)?;
        let sampler = changes::check(checkpoint.state()).cloned().map_err(|why| {
            RecipeError::usage(cannot_resume(folder), why, "name a checkpoint that a recipe wrote")
        })?;
        let run = run_of(checkpoint.path());
        Ok(Self { checkpoint, sampler, run })
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
    fn continues_in(&self, out: &Path) -> bool {
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
        let what = || cannot_resume(self.checkpoint.path());
        let refused = |cause: String, remedy: &str| Err(RecipeError::usage(what(), cause, remedy));
        let before = &self.state().config;
        let now = serde_json::to_value(&*config)
            .map_err(|error| RecipeError::usage(what(), error.to_string(), "give paths in UTF-8"))?;
        for key in ["model", "stem"] {
            if before.get(key) != now.get(key) {
                let show = |config: &serde_json::Value| config[key].as_str().unwrap_or("unknown").to_owned();
                return refused(
                    format!("its --{key} is {}, not {}", show(before), show(&now)),
                    "leave the option out, or begin a new run with --weights",
                );
            }
        }
        if before.get("weights") != now.get("weights") {
            let remedy = "leave out --weights, or --resume";
            return refused("the weights are the checkpoint's, and --weights names others".into(), remedy);
        }
        if self.sampler.dataset_len != train_images as u64 {
            let images = self.sampler.dataset_len;
            return refused(
                format!("it was trained on {images} images, and now there are {train_images}"),
                "give the same --data, or begin a new run with --weights",
            );
        }
        let mut notes: Vec<String> =
            changes::keep_global_batch(config, &self.sampler, world_size).into_iter().collect();
        notes.extend(changes::changed_options(before, &now));
        notes.extend(
            config.distributed.as_ref().and_then(|distributed| changes::begun_anew(distributed.wire)),
        );
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
        let path = self.checkpoint.path();
        match locate(&ResumeChoice::Folder(run.into()), None, "")? {
            Some(newest) if newest.file_name() != path.file_name() => Err(RecipeError::usage(
                format!("{} in its own folder", cannot_resume(path)),
                format!("the run has gone on to {}", newest.display()),
                "resume from the run's folder, or give --out another folder to branch off",
            )),
            _ => Ok(()),
        }
    }

    fn unusable(&self, error: burn_nccl_records::Error) -> RecipeError {
        RecipeError::records(cannot_resume(self.checkpoint.path()), error)
    }

    /// Where a loop with these batches goes on.
    pub(crate) fn position(&self, global_batch: usize, steps_per_epoch: usize) -> Position {
        changes::position(self.state(), &self.sampler, global_batch, steps_per_epoch)
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

/// Whether a run in `out` goes on with the records that are there: those of the checkpoint's run, or of one that was
/// interrupted before its first checkpoint.
pub(crate) fn continues(out: &Path, options: &TrainOptions, resume: Option<&Resume>) -> bool {
    match resume {
        Some(resume) => resume.continues_in(out),
        None => matches!(options.resume, ResumeChoice::Anew | ResumeChoice::Auto) && is_interrupted(out),
    }
}

/// Whether a run began in `out` and did not end. One that ended without checkpoints is not begun again over its results.
fn is_interrupted(out: &Path) -> bool {
    out.join("config.json").exists() && !RunFolder::existing(out).has_ended()
}

/// Makes sure that `out` holds no other run than the one that goes on, and that nothing of that one is lost.
///
/// # Errors
/// As [`RunFolder::check_unused`]; where the run has a newer checkpoint than the one to go on from.
pub(crate) fn check_out(options: &TrainOptions, resume: Option<&Resume>) -> Result<()> {
    match (options.out.as_deref(), resume) {
        (Some(out), _) if !continues(out, options, resume) => RunFolder::check_unused(out),
        (_, Some(resume)) => resume.check_newest(),
        (_, None) => Ok(()),
    }
}
