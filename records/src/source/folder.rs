//! Which file of a folder holds the weights.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Broken, Found, Named, check_model};
use crate::{Error, Result};

/// What the recipes write last.
const RUN_SUMMARY: &str = "summary.json";

/// Where weights are, once a folder has been looked into.
#[derive(Debug, PartialEq)]
pub(crate) enum Located {
    /// A single file of any format.
    File(PathBuf),
    /// An index of shards.
    Index(PathBuf),
    /// The weights of a checkpoint.
    Checkpoint(PathBuf),
}

/// Finds the weights at `path`, a file or a folder.
pub(crate) fn locate(path: &Path) -> Result<Located> {
    let kind = fs::metadata(path).map_err(Error::file("read", path))?;
    if kind.is_file() {
        return Ok(Located::File(path.into()));
    }
    if !kind.is_dir() {
        // A pipe would be waited for, for ever, and a device has no end.
        return Err(Error::UnknownFormat {
            path: path.into(),
            found: "it is neither a file nor a folder".into(),
        });
    }
    let (model, index, single) = (
        path.join(checkpoint::MODEL),
        path.join("model.safetensors.index.json"),
        path.join("model.safetensors"),
    );
    if is_finished(path) {
        return Ok(Located::Checkpoint(model));
    }
    let Found { newest, broken } = newest_checkpoint(path)?;
    if let Some(newest) = newest {
        Ok(Located::Checkpoint(newest.join(checkpoint::MODEL)))
    } else if model.is_file() {
        check_model(path).map_err(|why| Error::CheckpointBroken { path: path.into(), why })?;
        Ok(Located::Checkpoint(model))
    } else if index.is_file() {
        Ok(Located::Index(index))
    } else if single.is_file() {
        Ok(Located::File(single))
    } else {
        let found = match broken.first() {
            Some(Broken { path, why }) => {
                format!("the folder's newest checkpoint is {}: {why}", path.display())
            }
            None => {
                "the folder has no checkpoint, `model.bpk`, `model.safetensors` or index of shards".into()
            }
        };
        Err(Error::UnknownFormat { path: path.into(), found })
    }
}

/// Whether a recipe's run has ended in the folder: its weights are newer than those of its checkpoints then.
fn is_finished(path: &Path) -> bool {
    [RUN_SUMMARY, checkpoint::MODEL].into_iter().all(|name| path.join(name).is_file())
}

/// The newest complete checkpoint in the folder of a run or of checkpoints. In a checkpoint itself there is none.
fn newest_checkpoint(path: &Path) -> Result<Found> {
    match checkpoint::named(path) {
        Named::Checkpoint => Ok(Found::default()),
        Named::FolderOf(folder) => checkpoint::newest_weights(&folder).map_err(Error::file("read", &folder)),
    }
}
