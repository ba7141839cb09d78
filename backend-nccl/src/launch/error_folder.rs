use super::error::LaunchError;
use nix::libc;
use std::{
    fs::{self, DirBuilder, DirEntry, File},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

const PREFIX: &str = "burn-nccl-";

/// Locked by the launcher for as long as it lives, whatever ends it.
const LOCK: &str = "lock";

/// A folder that is younger may not have been locked yet.
const OLD: Duration = Duration::from_secs(60);

/// A private folder for the ranks' error reports, removed with this value. That of a launcher which was killed is removed by
/// the next one.
pub(super) struct ErrorFolder {
    path: PathBuf,
    _lock: Option<File>,
}

impl ErrorFolder {
    pub(super) fn create(run_id: &str, node: usize) -> Result<Self, LaunchError> {
        let folder = std::env::temp_dir();
        sweep(&folder, OLD);
        Self::create_in(&folder, run_id, node)
    }

    fn create_in(folder: &Path, run_id: &str, node: usize) -> Result<Self, LaunchError> {
        // Launchers of several nodes may run on one host.
        let path = folder.join(format!("{PREFIX}{run_id}-{node}"));
        if let Err(source) = DirBuilder::new().mode(0o700).create(&path) {
            return Err(LaunchError::File { path, source });
        }
        // What cannot be locked is never swept.
        let lock = File::create(path.join(LOCK)).ok().filter(|lock| lock.try_lock().is_ok());
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ErrorFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning of its temporary folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what launchers of this user have left in `folder` that are gone, unless it is younger than `age`.
fn sweep(folder: &Path, age: Duration) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_old_folder(entry, age)) {
        let path = entry.path();
        // Whoever has the lock is alive; a folder without one is not ours.
        let lock = File::options().write(true).open(path.join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn is_old_folder(entry: &DirEntry, age: Duration) -> bool {
    let has_our_name = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
    // SAFETY: reads a number of this process and cannot fail.
    let own = unsafe { libc::geteuid() };
    let is_old = |modified: std::time::SystemTime| modified.elapsed().is_ok_and(|elapsed| elapsed >= age);
    has_our_name
        && entry
            .metadata()
            .is_ok_and(|data| data.is_dir() && data.uid() == own && data.modified().is_ok_and(is_old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_launcher_that_is_gone_is_swept_and_no_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = || {
            let names = fs::read_dir(folder.path()).expect("listed").flatten().map(|entry| entry.file_name());
            let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
            names.sort();
            names
        };
        let create = |run_id| ErrorFolder::create_in(folder.path(), run_id, 0).expect("created");
        let (alive, mut gone) = (create("alive"), create("gone"));
        // As the system does when it ends a process.
        gone._lock = None;
        std::mem::forget(gone);
        fs::create_dir(folder.path().join("burn-nccl-not-a-launchers")).expect("made");
        sweep(folder.path(), Duration::from_secs(60));
        assert_eq!(names(), ["burn-nccl-alive-0", "burn-nccl-gone-0", "burn-nccl-not-a-launchers"]);
        sweep(folder.path(), Duration::ZERO);
        assert_eq!(names(), ["burn-nccl-alive-0", "burn-nccl-not-a-launchers"]);
        drop(alive);
        assert_eq!(names(), ["burn-nccl-not-a-launchers"]);
    }
}
