//! A folder of checkpoints that this process holds, and the writing of one checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn_nccl::ProcessGroup;

use super::config::CheckpointConfig;
use super::contents;
use super::failure::{CheckpointFailure, Result};
use super::layout::{self, MODEL, Name, OPTIMIZER, STATE, Staged};
use super::lock::FolderLock;
use super::optimizer_file;
use super::retention::doomed;
use super::snapshot::Snapshot;
use super::state;
use crate::{SaveOptions, save_tensors, write_file};

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    step: u64,
    path: PathBuf,
    metric: Option<f64>,
}

/// A folder of checkpoints, which is this process's alone.
pub(super) struct Folder {
    path: PathBuf,
    config: CheckpointConfig,
    /// Those who train what is saved here.
    group: Option<ProcessGroup>,
    kept: Vec<Kept>,
    _lock: FolderLock,
}

impl Folder {
    /// Creates the folder if need be, takes it, and removes what dead writers left.
    pub(super) fn take(path: &Path, config: CheckpointConfig, group: Option<ProcessGroup>) -> Result<Self> {
        fs::create_dir_all(path).map_err(CheckpointFailure::io("create", path))?;
        let lock = FolderLock::take(path)?;
        if lock.is_held() {
            layout::sweep(path).map_err(CheckpointFailure::io("read", path))?;
        }
        let kept = scan(path)?;
        Ok(Self { path: path.into(), config, group, kept, _lock: lock })
    }

    /// The steps of the checkpoints that are there.
    pub(super) fn steps(&self) -> Vec<u64> {
        self.kept.iter().map(|kept| kept.step).collect()
    }

    /// Writes a checkpoint, and deletes those that are not to be kept once it is on disk.
    pub(super) fn write(&mut self, snapshot: Snapshot) -> Result<()> {
        let start = Instant::now();
        let (step, metric) = (snapshot.step(), snapshot.state.metric);
        let staged = Staged::create(&self.path, step)?;
        write_files(staged.path(), snapshot, self.group.as_ref())?;
        let path = staged.publish()?;
        log::info!("saved {} in {:.1} s", path.display(), start.elapsed().as_secs_f64());
        if let Some(index) = self.kept.iter().position(|kept| kept.step == step) {
            let replaced = self.kept.swap_remove(index);
            // Under a retired name, which the new one did not take the place of.
            if replaced.path != path {
                layout::discard(&replaced.path);
            }
        }
        self.kept.push(Kept { step, path, metric });
        self.delete_old(step);
        Ok(())
    }

    /// All ranks have begun the save that leads here, so that none still reads what is deleted.
    fn delete_old(&mut self, newest: u64) {
        let all: Vec<(u64, Option<f64>)> = self.kept.iter().map(|kept| (kept.step, kept.metric)).collect();
        for step in doomed(&all, newest, &self.config) {
            let Some(index) = self.kept.iter().position(|kept| kept.step == step) else { continue };
            let kept = self.kept.swap_remove(index);
            match layout::retire(&self.path, step, &kept.path) {
                Ok(retired) => layout::discard(&retired),
                Err(failure) => log::warn!("the old checkpoint {} stays: {failure}", kept.path.display()),
            }
        }
    }
}

/// The complete checkpoints in `folder`, by the sizes of their files: broken ones and foreign folders are not ours to
/// delete. A retired one counts where nothing complete has its name.
fn scan(folder: &Path) -> Result<Vec<Kept>> {
    let mut kept: Vec<Kept> = Vec::new();
    let mut entries = layout::entries(folder).map_err(CheckpointFailure::io("read", folder))?;
    entries.sort_by_key(|(name, _)| matches!(name, Name::Retired(_)));
    for (name, path) in entries {
        let (Name::Step(step) | Name::Retired(step)) = name else { continue };
        if let Ok((_, state)) = contents::check(&path)
            && kept.iter().all(|kept| kept.step != step)
        {
            kept.push(Kept { step, path, metric: state.metric });
        }
    }
    Ok(kept)
}

/// Writes the files of a checkpoint to a folder that nobody else sees yet, each down to the disk, the manifest last.
fn write_files(folder: &Path, snapshot: Snapshot, group: Option<&ProcessGroup>) -> Result<()> {
    let Snapshot { model, parameters, optimizer, state } = snapshot;
    let path = folder.join(OPTIMIZER);
    let record = optimizer.to_record();
    record.save(&path).map_err(|error| CheckpointFailure::pack(&path, error))?;
    // Now, and not at the resume that needs it.
    optimizer_file::check(&path, &optimizer, &parameters)
        .map_err(|reason| CheckpointFailure::Optimizer { reason })?;
    drop(optimizer);
    save_tensors(model, folder.join(MODEL), &SaveOptions::default()).map_err(contents::failure)?;
    // A GPU may not have ended the step before it was read. Where that step fails, its values are wrong and no error tells.
    group
        .map_or(Ok(()), ProcessGroup::check_values)
        .map_err(|failure| CheckpointFailure::Group { failure })?;
    write_file(folder.join(STATE), state::encode(&state), true, false).map_err(contents::failure)?;
    contents::seal(folder, &state)
}
