//! [`Checkpointer`]: saving while training goes on, in step with the other ranks.

use std::path::Path;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn_nccl::ProcessGroup;

use super::config::CheckpointConfig;
use super::state::TrainingState;
use crate::error::Result;

/// Saves the checkpoints of a training.
pub struct Checkpointer {}

impl Checkpointer {
    /// Takes the folder for this training.
    pub fn open(
        folder: impl AsRef<Path>,
        config: CheckpointConfig,
        group: Option<&ProcessGroup>,
    ) -> Result<Self> {
        let _ = (folder.as_ref(), config, group);
        unimplemented!()
    }

    /// Saves a checkpoint while training goes on.
    pub fn save<M: Module>(
        &mut self,
        model: &M,
        optimizer: &ModuleOptimizer,
        state: TrainingState,
    ) -> Result<()> {
        let _ = (model, optimizer, state);
        unimplemented!()
    }

    /// Returns once the last checkpoint is on disk, on every rank.
    pub fn wait(&mut self) -> Result<()> {
        unimplemented!()
    }

    /// As [`wait`](Self::wait), and gives the folder back.
    pub fn finish(self) -> Result<()> {
        unimplemented!()
    }

    /// Seconds for which the last [`save`](Self::save) held up the training.
    pub fn pause_seconds(&self) -> f64 {
        unimplemented!()
    }
}
