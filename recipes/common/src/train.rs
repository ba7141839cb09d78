//! The training loop, the same for one rank and for many.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use burn::module::Module;
use burn_nccl::launch::STOPPED_EXIT_CODE;
use burn_nccl_datasets::Loader;
use burn_nccl_models::ResNet;

use crate::config::RunConfig;
use crate::data::Images;
use crate::device::SelectedDevice;
use crate::error::Result;
use crate::metrics::Summary;
use crate::parallel::Parallel;
use crate::progress::Progress;
use crate::resume::Resume;
use crate::stop;
use crate::trainer::Trainer;
use crate::weights::pretrained;

/// What a run is made of, on one rank.
pub struct Run {
    /// The recipe's name.
    pub recipe: &'static str,
    /// What to do.
    pub config: RunConfig,
    /// Where to compute.
    pub device: SelectedDevice,
    /// This rank's training images.
    pub train: Loader,
    /// This rank's test images.
    pub test: Loader,
    /// Alone or in a group.
    pub parallel: Parallel,
    /// Where rank 0 writes.
    pub out: PathBuf,
    /// What rank 0 shows.
    pub progress: Box<dyn Progress>,
    /// When the process began.
    pub started: Instant,
    /// The checkpoint that it goes on from.
    pub resume: Option<Resume>,
    /// Whether `out` holds an interrupted run, which this one goes on with or takes the place of. The same on all ranks.
    pub continues: bool,
}

/// How a run ended.
#[derive(Clone, Debug)]
#[must_use]
pub enum Ended {
    /// It came to its end. Its summary on rank 0, unless it was a run that had ended before: its results stay as they are.
    Complete(Option<Box<Summary>>),
    /// A signal has stopped it, and it can go on.
    Interrupted,
}

impl Ended {
    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Complete(_) => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(STOPPED_EXIT_CODE as u8),
        }
    }
}

/// A model with the weights of the checkpoint, those of `--weights`, or those that the seed draws: the same on every
/// rank.
///
/// # Errors
/// Where weights cannot be read, or are not those of the model.
pub fn initial_model(
    config: &RunConfig,
    images: &Images,
    device: &SelectedDevice,
    resume: Option<&Resume>,
) -> Result<ResNet> {
    let model = config.model(images.num_classes()).init(&device.device.clone().autodiff());
    if let Some(resume) = resume {
        return resume.model(&model);
    }
    device.device.seed(config.seed);
    // Draws the weights now, in the order of the layers.
    let model = model.materialize();
    config.weights.as_deref().map_or(Ok(model.clone()), |weights| pretrained(&model, weights))
}

impl Run {
    /// Trains `model`, tests it after each epoch, and leaves the results in the run folder.
    ///
    /// The folder is created when the first step has succeeded, so a run that cannot begin leaves nothing behind.
    /// Unless there are to be no checkpoints, `SIGTERM` and `SIGUSR1` are handled from here on: all ranks end after the same
    /// step, with a checkpoint, whichever of them got the signal.
    ///
    /// # Errors
    /// Where an image cannot be read, a rank is lost, a file cannot be written, or the loss is not finite; the last
    /// on all ranks, in the same step.
    pub fn train(self, mut model: ResNet) -> Result<Ended> {
        let epochs = self.config.epochs;
        let mut trainer = Trainer::new(self, &model)?;
        if trainer.is_complete()? {
            return Ok(Ended::Complete(None));
        }
        if trainer.has_checkpoints() {
            stop::watch()?;
        }
        trainer.announce();
        let mut evaluation = None;
        while trainer.epoch_now() <= epochs && !trainer.is_over() {
            let epoch = trainer.epoch_now();
            model = trainer.epoch(model)?;
            if trainer.is_interrupted() {
                return trainer.interrupt(model);
            }
            model = trainer.run.parallel.sync_buffers(model)?;
            let Some(tested) = trainer.test(epoch, &model)? else { return trainer.interrupt(model) };
            trainer.save_if_due(&model, &tested)?;
            evaluation = Some(tested);
        }
        // A run that is resumed at its end has nothing left to train.
        let evaluation =
            evaluation.map_or_else(|| trainer.test(epochs, &model), |tested| Ok(Some(tested)))?;
        let Some(evaluation) = evaluation else { return trainer.interrupt(model) };
        let is_recorder = trainer.run.parallel.rank() == 0;
        // The results first: they need no checkpoint.
        let summary = is_recorder.then(|| trainer.finish(model, evaluation)).transpose()?;
        trainer.finish_checkpoints()?;
        Ok(Ended::Complete(summary.map(Box::new)))
    }

    /// Trains until the run is over and keeps nothing.
    pub(crate) fn try_steps(self, mut model: ResNet) -> Result<()> {
        let mut trainer = Trainer::new(self, &model)?;
        trainer.records = false;
        while !trainer.is_over() {
            model = trainer.epoch(model)?;
        }
        Ok(())
    }
}
