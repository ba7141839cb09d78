//! The training loop, the same for one rank and for many.

use std::path::PathBuf;
use std::time::Instant;

use burn::module::Module;
use burn_nccl_datasets::Loader;
use burn_nccl_models::ResNet;

use crate::config::RunConfig;
use crate::data::Images;
use crate::device::SelectedDevice;
use crate::error::Result;
use crate::metrics::Summary;
use crate::parallel::Parallel;
use crate::progress::Progress;
use crate::trainer::Trainer;

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
}

/// A model with the weights that the seed draws, the same on every rank.
pub fn new_model(config: &RunConfig, images: &Images, device: &SelectedDevice) -> ResNet {
    device.device.seed(config.seed);
    let model = config.model(images.num_classes()).init(&device.device.clone().autodiff());
    // Draws the weights now, in the order of the layers.
    model.materialize()
}

impl Run {
    /// Trains `model`, tests it after each epoch, and leaves the results in the run folder.
    ///
    /// The folder is created when the first step has succeeded, so a run that cannot begin leaves nothing behind.
    /// Returns the summary on rank 0.
    ///
    /// # Errors
    /// Where an image cannot be read, a rank is lost, a file cannot be written, or the loss is not finite; the last
    /// on all ranks, in the same step.
    pub fn train(self, mut model: ResNet) -> Result<Option<Summary>> {
        let epochs = self.config.epochs;
        let mut trainer = Trainer::new(self, &model)?;
        trainer.announce();
        let mut evaluation = None;
        for epoch in 1..=epochs {
            model = trainer.epoch(epoch, model)?;
            model = trainer.run.parallel.sync_buffers(model)?;
            evaluation = Some(trainer.test(epoch, &model)?);
            if trainer.is_over() {
                break;
            }
        }
        match evaluation {
            Some(evaluation) if trainer.run.parallel.rank() == 0 => {
                trainer.finish(model, evaluation).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Trains until the run is over and keeps nothing.
    pub(crate) fn try_steps(self, mut model: ResNet) -> Result<()> {
        let mut trainer = Trainer::new(self, &model)?;
        trainer.records = false;
        let mut epoch = 1;
        while !trainer.is_over() {
            model = trainer.epoch(epoch, model)?;
            epoch += 1;
        }
        Ok(())
    }
}
