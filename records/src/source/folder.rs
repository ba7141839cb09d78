//! Which file of a folder holds the weights.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

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
    let (model, index, single) =
        (path.join("model.bpk"), path.join("model.safetensors.index.json"), path.join("model.safetensors"));
    if is_checkpoint(path) {
        Ok(Located::Checkpoint(model))
    } else if let Some(newest) =
        newest_checkpoint(&path.join("checkpoints")).or_else(|| newest_checkpoint(path))
    {
        Ok(Located::Checkpoint(newest.join("model.bpk")))
    } else if model.is_file() {
        Ok(Located::Checkpoint(model))
    } else if index.is_file() {
        Ok(Located::Index(index))
    } else if single.is_file() {
        Ok(Located::File(single))
    } else {
        let found =
            "the folder has no checkpoint, `model.bpk`, `model.safetensors` or index of shards".into();
        Err(Error::UnknownFormat { path: path.into(), found })
    }
}

/// The manifest is written last, so a folder that has it is complete.
fn is_checkpoint(folder: &Path) -> bool {
    folder.join("manifest.json").is_file() && folder.join("model.bpk").is_file()
}

/// The complete `step-N` in `folder` with the greatest number; as text, `step-10` would come before `step-9`.
fn newest_checkpoint(folder: &Path) -> Option<PathBuf> {
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((step(&path)?, path)))
        .filter(|(_, path)| is_checkpoint(path))
        .max_by_key(|&(step, _)| step)
        .map(|(_, path)| path)
}
