//! What a complete checkpoint holds, and how that is told from a broken one.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::Map;

use super::failure::{CheckpointFailure, Result};
use super::layout::{MODEL, Name, OPTIMIZER, STATE};
use super::state::{self, TrainingState};
use crate::Manifest;
use crate::error::Error;

pub(super) const MANIFEST: &str = Manifest::FILE_NAME;

/// A larger `state.json` is not read: JSON takes up to twenty times its size in memory.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// Writes the manifest, after everything it describes: a folder without one is no checkpoint.
pub(super) fn seal(folder: &Path, state: &TrainingState) -> Result<()> {
    let described = Manifest::describe(folder, &[MODEL, OPTIMIZER, STATE]).map_err(failure)?;
    let mut metrics = Map::new();
    metrics.insert("step".into(), state.step.into());
    metrics.insert("epoch".into(), state.epoch.into());
    if let Some(metric) = state.metric {
        metrics.insert("metric".into(), metric.into());
    }
    described.with_metrics(metrics).write(folder).map_err(failure)
}

/// What this crate's own error of writing a file means for a checkpoint.
pub(super) fn failure(error: Error) -> CheckpointFailure {
    match error {
        Error::File { action, path, source } => CheckpointFailure::io(action, &path)(source),
        error => CheckpointFailure::Tensor { reason: error.to_string() },
    }
}

/// The manifest and the state of a checkpoint that is complete by the sizes of its files; what is wrong otherwise. Reads
/// no tensor.
///
/// This is what a complete checkpoint is, to whoever looks for one; [`verify`] finds changed bytes besides.
pub(super) fn check(folder: &Path) -> Result<(Manifest, TrainingState), String> {
    let manifest = check_sizes(folder)?;
    let state = read_state(folder)?;
    match Name::of(folder) {
        Some(name) if name.step() != state.step => Err(format!("its state is that of step {}", state.step)),
        _ => Ok((manifest, state)),
    }
}

/// The manifest of a folder whose files are there in full length; what is wrong otherwise.
fn check_sizes(folder: &Path) -> Result<Manifest, String> {
    check_is_folder(folder)?;
    let manifest = match Manifest::read(folder) {
        Ok(manifest) => manifest,
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Err(format!("it has no {MANIFEST}, so that it was never finished"));
        }
        Err(Error::File { source, .. }) => return Err(format!("{MANIFEST} cannot be read: {source}")),
        Err(Error::Manifest { why, .. }) => return Err(format!("{MANIFEST} is not valid: {why}")),
        Err(error) => return Err(error.to_string()),
    };
    for name in [MODEL, OPTIMIZER, STATE] {
        let Some(file) = manifest.files.iter().find(|file| file.name == name) else {
            return Err(format!("{MANIFEST} lacks {name}, so that it is none of a checkpoint"));
        };
        let found = fs::symlink_metadata(folder.join(name)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{name} is missing"),
            _ => format!("{name} cannot be read: {error}"),
        })?;
        if !found.is_file() {
            return Err(format!("{name} is a link or no file"));
        }
        if found.len() != file.bytes {
            return Err(format!("{name} has {} of {} bytes", found.len(), file.bytes));
        }
    }
    Ok(manifest)
}

/// What is wrong with the weights of a checkpoint that is complete by the sizes of its files, or with these.
pub(super) fn check_weights(folder: &Path) -> Result<(), String> {
    check(folder).and_then(|(manifest, _)| compare_model(manifest, folder))
}

/// What is wrong with the weights in a folder that a manifest describes; nothing where none does.
pub(crate) fn check_model(folder: &Path) -> Result<(), String> {
    match Manifest::read(folder) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(manifest) => compare_model(manifest, folder),
    }
}

/// How the weights differ from what `manifest` says, if it says something.
fn compare_model(mut manifest: Manifest, folder: &Path) -> Result<(), String> {
    manifest.files.retain(|file| file.name == MODEL);
    let found = manifest.verify(folder);
    if found.is_intact() { Ok(()) } else { Err(found.to_string()) }
}

/// The state in a folder whose files are what the manifest says to the last bit; what is wrong otherwise.
pub(super) fn verify(folder: &Path) -> Result<TrainingState, String> {
    // Before the hashes: they take long, and this does not.
    let (manifest, state) = check(folder)?;
    let found = manifest.verify(folder);
    if found.is_intact() { Ok(state) } else { Err(found.to_string().replace('\n', "; ")) }
}

/// The state in a folder.
fn read_state(folder: &Path) -> Result<TrainingState, String> {
    let unreadable = |error: std::io::Error| format!("{STATE} cannot be read: {error}");
    let mut text = String::new();
    let file = File::open(folder.join(STATE)).map_err(unreadable)?;
    file.take(MAX_STATE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_STATE_BYTES {
        return Err(format!("{STATE} is larger than {} MiB", MAX_STATE_BYTES >> 20));
    }
    state::decode(&text).map_err(|why| format!("{STATE} is not valid: {why}"))
}

fn check_is_folder(path: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(path).map_err(|error| format!("it cannot be read: {error}"))?;
    if found.is_dir() { Ok(()) } else { Err("it is a link or no folder".into()) }
}
