//! Names of folders, changed in one step where the system can.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
}

/// Renames, unless something has the name already.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_by(from, to, nix::fcntl::RenameFlags::RENAME_NOREPLACE) {
        Err(error) if is_unsupported(&error) => fs::rename(from, to),
        result => result,
    }
}

/// Gives each of two folders the other's name, in one step.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    rename_by(a, b, nix::fcntl::RenameFlags::RENAME_EXCHANGE)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_by(from: &Path, to: &Path, flags: nix::fcntl::RenameFlags) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, renameat2};
    renameat2(AT_FDCWD, from, AT_FDCWD, to, flags).map_err(io::Error::from)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    // A folder does not take the name of another one that holds something.
    fs::rename(from, to)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn exchange(_a: &Path, _b: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
