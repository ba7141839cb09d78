//! Folders under hidden names, and what killed writers have left of them.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::is_ours;
use super::rename::rename_new;

pub(super) fn lock_of(folder: &Path) -> PathBuf {
    with_suffix(folder, ".lock")
}

/// Where an old export is while a new one takes its name, on systems that cannot exchange two names.
pub(super) fn aside_of(folder: &Path) -> PathBuf {
    with_suffix(folder, ".old")
}

fn with_suffix(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// `.NAME.PROCESS-COUNT.tmp`: hidden, and one that nothing else has.
pub(super) fn claim(parent: &Path, destination: &Path) -> io::Result<(PathBuf, File)> {
    for count in 0u32.. {
        let path = parent.join(format!("{}{}-{count}.tmp", prefix(destination), std::process::id()));
        let lock = match File::create_new(lock_of(&path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            lock => lock?,
        };
        // Between the two calls another writer may have taken it for a leftover. (Where there are no locks, none is.)
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) || !lock_of(&path).exists() {
            continue;
        }
        match fs::create_dir(&path) {
            Ok(()) => return Ok((path, lock)),
            Err(error) => {
                let _ = fs::remove_file(lock_of(&path));
                if error.kind() != ErrorKind::AlreadyExists {
                    return Err(error);
                }
            }
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn prefix(destination: &Path) -> String {
    format!(".{}.", destination.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes what killed writers have left, and gives an export its name back that one of them had set aside. Whatever fails
/// here fails nothing.
pub(super) fn sweep(parent: &Path, destination: &Path) {
    let prefix = prefix(destination);
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let counted = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".tmp.lock"));
        let ours = counted.and_then(|counted| counted.split_once('-')).is_some_and(|(process, count)| {
            [process, count].iter().all(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        });
        let lock = File::open(entry.path()).ok().filter(|_| ours);
        if let Some(lock) = lock
            && lock.try_lock().is_ok()
        {
            let folder = entry.path().with_extension("");
            restore(&aside_of(&folder), destination);
            remove(&folder);
            // As long as something is left, the next writer tries again.
            if !aside_of(&folder).exists() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// An old export that stepped aside belongs under its name, unless a new one has it already.
fn restore(aside: &Path, destination: &Path) {
    if fs::symlink_metadata(destination).is_ok() {
        remove(aside);
    } else {
        // Most often there is none.
        let _ = rename_new(aside, destination);
    }
}

/// Removes a folder of ours with the files that we write, and nothing else.
pub(super) fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Hidden ones are what writers of single files leave when they are killed.
        if name.to_str().is_some_and(|name| is_ours(name) || name.starts_with('.') && name.ends_with(".tmp"))
        {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
