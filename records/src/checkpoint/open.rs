//! [`Checkpoint`]: a checkpoint that is complete, opened for loading.

use std::path::Path;

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::state::TrainingState;
use crate::error::Result;

/// An opened, verified checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {}

impl Checkpoint {
    /// Opens a checkpoint, the newest of a folder of checkpoints, or the newest of a run.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let _ = path.as_ref();
        unimplemented!()
    }

    /// The folder of the checkpoint.
    pub fn path(&self) -> &Path {
        unimplemented!()
    }

    /// Where the training stood.
    pub fn state(&self) -> &TrainingState {
        unimplemented!()
    }

    /// `model` with the values of the checkpoint.
    pub fn load_model<M: Module>(&self, model: &M) -> Result<M> {
        let _ = model;
        unimplemented!()
    }

    /// `optimizer` with the state of the checkpoint.
    pub fn load_optimizer<M: Module>(
        &self,
        optimizer: ModuleOptimizer,
        model: &M,
    ) -> Result<ModuleOptimizer> {
        let _ = (optimizer, model);
        unimplemented!()
    }
}
