//! One training to a folder.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use super::failure::{CheckpointFailure, Result};

const NAME: &str = ".lock";

/// The folder belongs to this process while this lives. The system releases the lock of a process that dies, so that
/// no crash leaves a folder locked.
pub(super) struct FolderLock {
    /// None where the file system has no locks, such as Lustre without its option `flock`.
    file: Option<File>,
}

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        // Nothing is written to it: a link in its place would make that another file.
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(CheckpointFailure::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file: Some(file) }),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                log::warn!("{} cannot be locked: see to it that one training saves there", folder.display());
                Ok(Self { file: None })
            }
            Err(TryLockError::WouldBlock) => Err(CheckpointFailure::InUse),
            Err(TryLockError::Error(error)) => Err(CheckpointFailure::io("lock", &path)(error)),
        }
    }

    /// Whether it is certain that no other training writes to the folder.
    pub(super) fn is_held(&self) -> bool {
        self.file.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_once_and_free_again_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        assert!(lock.is_held());
        assert_eq!(FolderLock::take(folder.path()).err(), Some(CheckpointFailure::InUse));
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
    }
}
