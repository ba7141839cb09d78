//! One training to a folder.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

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
        let file = open(&path).map_err(CheckpointFailure::io("create", &path))?;
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

/// Opens the file that is locked, and creates it where it is missing; never where a link points that someone planted,
/// and without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().write(true).create(true).truncate(false).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => not_a_file("it is a link"),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file("it is a device or a pipe")) }
}

fn not_a_file(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("{why}; remove it"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

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

    #[test]
    fn a_link_or_a_pipe_in_place_of_the_lock_is_refused_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (checkpoints, outside) = (folder.path().join("checkpoints"), folder.path().join("outside"));
        fs::create_dir(&checkpoints).unwrap();
        let lock = checkpoints.join(NAME);
        symlink(&outside, &lock).unwrap();
        let dangling = FolderLock::take(&checkpoints).err().unwrap().to_string();
        assert!(dangling.contains("a link"), "{dangling}");
        assert!(!outside.exists());

        fs::write(&outside, "mine").unwrap();
        assert!(FolderLock::take(&checkpoints).is_err());
        fs::remove_file(&lock).unwrap();
        mkfifo(&lock, Mode::S_IRWXU).unwrap();
        assert!(FolderLock::take(&checkpoints).is_err());
    }
}
