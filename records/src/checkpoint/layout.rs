//! Names on disk, and folders that appear complete or not at all.
//!
//! ```text
//! <folder>/step-N/             a checkpoint
//! <folder>/.step-N.<id>.tmp/   one that is being written
//! <folder>/.step-N.<id>.old/   one that was replaced or is to be deleted
//! <folder>/step-N.broken-<id>/ what stood in the way of `step-N` and was no checkpoint
//! ```

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::contents;
use super::failure::{CheckpointFailure, Result};
use crate::atomic;

/// The folder of a run in which its checkpoints are.
const CHECKPOINTS: &str = "checkpoints";
/// The parameters and running statistics.
pub(crate) const MODEL: &str = "model.bpk";
/// The state of the optimizer.
pub(super) const OPTIMIZER: &str = "optimizer.bpk";
/// The rest of the training's state.
pub(super) const STATE: &str = "state.json";

/// A name in a folder of checkpoints that this crate gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A checkpoint.
    Step(u64),
    /// One that was being written.
    Staged(u64),
    /// One that was replaced or is to be deleted.
    Retired(u64),
}

impl Name {
    /// That of the folder at `path`.
    pub(super) fn of(path: &Path) -> Option<Self> {
        Self::parse(path.file_name()?.to_str()?)
    }

    /// The step in it.
    pub(super) fn step(self) -> u64 {
        match self {
            Self::Step(step) | Self::Staged(step) | Self::Retired(step) => step,
        }
    }

    /// What `name` stands for; none where this crate would not have given it.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if let Some(step) = name.strip_prefix("step-") {
            return number(step).map(Self::Step);
        }
        let (step, rest) = name.strip_prefix(".step-")?.split_once('.')?;
        let (id, ending) = rest.split_once('.')?;
        let (process, count) = id.split_once('-')?;
        let (step, _, _) = (number(step)?, number(process)?, number(count)?);
        match ending {
            "tmp" => Some(Self::Staged(step)),
            "old" => Some(Self::Retired(step)),
            _ => None,
        }
    }
}

/// A number as this crate writes it: `007` and `+7` are other people's names.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

/// The folder of the checkpoint of `step`.
pub(super) fn step_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step}"))
}

/// What a folder that someone names is to checkpoints.
#[derive(Debug, PartialEq)]
pub(crate) enum Named {
    /// One of them, be it complete or not.
    Checkpoint,
    /// A run or any other folder; where its checkpoints are, if it has any.
    FolderOf(PathBuf),
}

/// Tells a checkpoint from the folder that it is in. A checkpoint has a name that this crate gives, or files that only
/// checkpoints have; a run has a folder `checkpoints`.
pub(crate) fn named(path: &Path) -> Named {
    let inside = path.join(CHECKPOINTS);
    let holds = |name: &str| fs::symlink_metadata(path.join(name)).is_ok();
    if inside.is_dir() {
        Named::FolderOf(inside)
    } else if Name::of(path).is_some() || [contents::MANIFEST, OPTIMIZER, STATE].into_iter().any(holds) {
        Named::Checkpoint
    } else {
        Named::FolderOf(path.into())
    }
}

/// Everything in `folder` that has one of our names and is a real folder, no link to one.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<(Name, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_str().and_then(Name::parse);
        if let (Some(name), true) = (name, entry.file_type()?.is_dir()) {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

/// Gives `attempt` names that differ in this process and in time, until one is free.
fn unused<T>(
    name: impl Fn(&str) -> PathBuf,
    attempt: impl Fn(&Path) -> io::Result<T>,
) -> (PathBuf, io::Result<T>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let path = name(&format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        match attempt(&path) {
            // A leftover of a dead process whose number came round again.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
            }
            result => return (path, result),
        }
    }
}

/// A folder under a name of its own, which takes the name of a checkpoint when it is complete, and is removed if it
/// never is.
pub(super) struct Staged {
    folder: PathBuf,
    path: PathBuf,
    step: u64,
    published: bool,
}

impl Staged {
    pub(super) fn create(folder: &Path, step: u64) -> Result<Self> {
        let (path, created) =
            unused(|id| folder.join(format!(".step-{step}.{id}.tmp")), |path| fs::create_dir(path));
        created.map_err(CheckpointFailure::io("create", &path))?;
        Ok(Self { folder: folder.into(), path, step, published: false })
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder, whose files are on disk, the name of its checkpoint. Of what had that name before, a checkpoint
    /// is retired and anything else set aside.
    pub(super) fn publish(mut self) -> Result<PathBuf> {
        sync_folder(&self.path)?;
        let target = step_folder(&self.folder, self.step);
        let replaced = make_room(&self.folder, self.step, &target)?;
        // Dying here leaves the replaced checkpoint under its retired name, where it is found.
        fs::rename(&self.path, &target).map_err(CheckpointFailure::io("rename", &self.path))?;
        self.published = true;
        sync_folder(&self.folder)?;
        if let Some(replaced) = replaced {
            discard(&replaced);
        }
        Ok(target)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Takes what is at `target` out of the way; returns the checkpoint that it was, if it was one.
fn make_room(folder: &Path, step: u64, target: &Path) -> Result<Option<PathBuf>> {
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CheckpointFailure::io("read", target)(error)),
        Ok(_) => {}
    }
    if contents::check(target).is_ok() {
        return retire(folder, step, target).map(Some);
    }
    let (path, renamed) =
        unused(|id| folder.join(format!("step-{step}.broken-{id}")), |path| fs::rename(target, path));
    renamed.map_err(CheckpointFailure::io("rename", target))?;
    log::warn!("{} was no complete checkpoint and is now {}", target.display(), path.display());
    Ok(None)
}

/// Takes the name of a checkpoint away, so that nobody finds it half deleted.
pub(super) fn retire(folder: &Path, step: u64, path: &Path) -> Result<PathBuf> {
    let (retired, renamed) =
        unused(|id| folder.join(format!(".step-{step}.{id}.old")), |to| fs::rename(path, to));
    renamed.map_err(CheckpointFailure::io("rename", path))?;
    Ok(retired)
}

/// Deletes a retired or staged folder. What remains of one that cannot be deleted is no checkpoint: its manifest goes
/// first.
pub(super) fn discard(path: &Path) {
    let _ = fs::remove_file(path.join(contents::MANIFEST));
    if let Err(error) = fs::remove_dir_all(path) {
        log::warn!("cannot delete {}: {error}; delete it by hand", path.display());
    }
}

/// Removes what dead writers left, for the holder of the folder's lock. A retired checkpoint without a successor under
/// its own name stays: its writer died between the two renames of a replacement.
pub(super) fn sweep(folder: &Path) -> io::Result<()> {
    for (name, path) in entries(folder)? {
        let is_left_over = match name {
            Name::Step(_) => false,
            Name::Staged(_) => true,
            Name::Retired(step) => {
                contents::check(&step_folder(folder, step)).is_ok() || contents::check(&path).is_err()
            }
        };
        if is_left_over {
            log::info!("removing {}, which a training that died left", path.display());
            discard(&path);
        }
    }
    Ok(())
}

/// Makes the names in `folder` durable.
fn sync_folder(folder: &Path) -> Result<()> {
    atomic::sync_folder(folder).map_err(contents::failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_this_crate_gives_are_its_own() {
        for (name, expected) in [
            ("step-0", Some(Name::Step(0))),
            ("step-18446744073709551615", Some(Name::Step(u64::MAX))),
            (".step-7.12-0.tmp", Some(Name::Staged(7))),
            (".step-7.12-3.old", Some(Name::Retired(7))),
            ("step-", None),
            ("step-07", None),
            ("step-+7", None),
            ("step--7", None),
            ("step-18446744073709551616", None),
            ("step-7 ", None),
            ("step-7.broken-1-1", None),
            ("Step-7", None),
            (".step-7.tmp", None),
            (".step-7.12.tmp", None),
            (".step-7.12-0.tmp.", None),
            (".step-7.12-0.tmpx", None),
            (".step-7.12-0-1.tmp", None),
            (".step-7.a-0.tmp", None),
            ("step-7.12-0.tmp", None),
        ] {
            assert_eq!(Name::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn a_folder_that_is_never_published_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let staged = Staged::create(folder.path(), 3).unwrap();
        fs::write(staged.path().join("half"), "1").unwrap();
        drop(staged);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_sweep_leaves_what_other_people_made() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["step-1", ".step-1.tmp", ".step-1.2-3.tmp.d", "notes", "step-2.broken-1-1"];
        for name in names.iter().chain(&[".step-1.2-3.tmp", ".step-1.2-3.old"]) {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("file"), "kept").unwrap();
        }
        fs::write(folder.path().join(".step-4.1-1.tmp"), "a file, not a folder").unwrap();
        sweep(folder.path()).unwrap();
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().display().to_string())
            .collect();
        left.sort();
        let mut expected: Vec<&str> = names.iter().copied().chain([".step-4.1-1.tmp"]).collect();
        expected.sort_unstable();
        assert_eq!(left, expected);
    }
}
