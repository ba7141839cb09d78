//! One training to a folder.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::failure::{CheckpointFailure, Result};

const NAME: &str = ".lock";

/// The folder belongs to this process while this lives. The system releases the lock of a process that dies, so that
/// no crash leaves a folder locked.
pub(super) struct FolderLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        // Nothing is written to it: a link in its place would make that another file.
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(CheckpointFailure::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(CheckpointFailure::InUse),
            Err(TryLockError::Error(error)) => Err(CheckpointFailure::io("lock", &path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_once_and_free_again_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        assert_eq!(FolderLock::take(folder.path()).err(), Some(CheckpointFailure::InUse));
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
    }
}
