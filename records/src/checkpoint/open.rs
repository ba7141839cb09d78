//! [`Checkpoint`]: a checkpoint that is complete, opened for loading.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::contents;
use super::find::newest;
use super::layout::{MODEL, Named, OPTIMIZER, named};
use super::optimizer_file;
use super::snapshot::Parameters;
use super::state::TrainingState;
use crate::error::{Error, Result};
use crate::{LoadDType, LoadOptions, Names, load};

/// A checkpoint that is complete: every file has the hash that its manifest says.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    state: TrainingState,
}

impl Checkpoint {
    /// Opens a checkpoint: `path` is its folder, or a folder of checkpoints or of a run with `checkpoints` in it, of which
    /// the newest complete one is taken; [`find`](super::find()) says which were not.
    ///
    /// # Errors
    /// [`Error::CheckpointBroken`] where the checkpoint that was named is not complete; [`Error::NoCheckpoint`] where none
    /// in the folder is; [`Error::File`] where the folder cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = || Error::file("read", path);
        let found = fs::symlink_metadata(path).map_err(failed())?;
        if found.is_symlink() {
            // A link that the caller names is followed; those inside a folder are not.
            return Self::open(fs::canonicalize(path).map_err(failed())?);
        }
        let folder = match named(path) {
            Named::FolderOf(folder) => folder,
            Named::Checkpoint => {
                return match contents::verify(path) {
                    Ok(state) => Ok(Self { path: path.into(), state }),
                    Err(why) => Err(Error::CheckpointBroken { path: path.into(), why }),
                };
            }
        };
        let (found, state) = newest(&folder).map_err(Error::file("read", &folder))?;
        match (found.newest, state) {
            (Some(path), Some(state)) => Ok(Self { path, state }),
            _ => Err(Error::NoCheckpoint { folder, broken: found.broken }),
        }
    }

    /// The folder of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the training stood.
    pub fn state(&self) -> &TrainingState {
        &self.state
    }

    /// A model like `model` with the values of the checkpoint, each in its stored type, on its parameter's device, and
    /// under the id by which the optimizer's state finds it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] where the checkpoint is of another model, and what [`load`] returns besides; nothing has
    /// changed then.
    pub fn load_model<M: Module>(&self, model: &M) -> Result<M> {
        let options = LoadOptions::default().with_names(Names::Burn).with_dtype(LoadDType::File);
        load(model, self.path.join(MODEL), &options).map(|(model, _)| model)
    }

    /// `optimizer` with the state of the checkpoint. `model` is what [`load_model`](Self::load_model) returned, and
    /// `optimizer` is made as the one that was saved.
    ///
    /// Burn reads the state onto the default device, and moves each tensor to its parameter's in the next step. Where each
    /// of several ranks has a GPU of its own, start it with that one alone visible, so that it is the default.
    ///
    /// # Errors
    /// [`Error::CheckpointOptimizer`] where the state is of another optimizer or another model; nothing has changed then.
    pub fn load_optimizer<M: Module>(
        &self,
        optimizer: ModuleOptimizer,
        model: &M,
    ) -> Result<ModuleOptimizer> {
        let path = self.path.join(OPTIMIZER);
        optimizer_file::load(&path, optimizer, &Parameters::of(model))
            .map_err(|why| Error::CheckpointOptimizer { path, why })
    }
}
