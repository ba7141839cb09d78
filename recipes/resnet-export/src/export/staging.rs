//! A folder that appears whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use burn_nccl_records::Manifest;
use recipe_common::{RecipeError, Result};

use crate::package::FILES;

/// A folder under a hidden name beside the one that it will be; removed unless it is published.
///
/// A file beside it is locked for as long as its writer lives. Whoever next writes the same destination removes those whose
/// lock is free, which a kill has left behind.
pub(super) struct Staging {
    path: PathBuf,
    destination: PathBuf,
    overwrite: bool,
    _lock: File,
}

/// Refuses a destination that cannot or may not be written, before anything is.
///
/// # Errors
///
/// For what is there already, unless it is an export and may be replaced.
pub(super) fn check(destination: &Path, overwrite: bool) -> Result<()> {
    let refused = |cause: &str, remedy: &str| {
        Err(RecipeError::usage(format!("cannot write {}", destination.display()), cause, remedy))
    };
    if destination.file_name().is_none() {
        return refused("it does not end with the name of a folder", "give the name of a new folder");
    }
    let found = match fs::symlink_metadata(destination) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(RecipeError::file("look at", destination, error)),
    };
    if !found.is_dir() {
        return refused("it is a file or a link", "give the name of a new folder");
    }
    if !overwrite {
        return refused("it is there already", "choose another --to, or replace an export with --overwrite");
    }
    match foreign_entry(destination) {
        Ok(None) => Ok(()),
        Ok(Some(name)) => refused(
            &format!("it is no export: it holds {}", name.display()),
            "choose another --to: only what export has written is replaced",
        ),
        Err(error) => Err(RecipeError::file("list", destination, error)),
    }
}

/// Something in a folder that export does not write.
fn foreign_entry(folder: &Path) -> io::Result<Option<OsString>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(is_ours);
        if !ours || !entry.file_type()?.is_file() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

impl Staging {
    /// Creates the folder, after it has removed what killed writers of the same destination have left.
    pub(super) fn create(destination: &Path, overwrite: bool) -> Result<Self> {
        let failed = |error| RecipeError::file("create", destination, error);
        let parent = parent(destination);
        fs::create_dir_all(parent).map_err(failed)?;
        sweep(parent, destination);
        let (path, lock) = claim(parent, destination).map_err(failed)?;
        Ok(Self { path, destination: destination.into(), overwrite, _lock: lock })
    }

    /// The folder while it is being written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one of its files, durably.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let write = || {
            let mut file = File::create_new(self.path.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|error| RecipeError::file("write", &self.destination.join(name), error))
    }

    /// Gives the folder its name in one step. What had the name is kept until then, and removed after.
    pub(super) fn publish(self) -> Result<()> {
        // Something may have got the name in the meantime.
        check(&self.destination, self.overwrite)?;
        let failed = |error| RecipeError::file("write", &self.destination, error);
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed)?;
        self.rename().map_err(failed)?;
        File::open(parent(&self.destination)).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// Exchanges the two names, where the system can; the old folder is then under the hidden name, which is dropped.
    fn rename(&self) -> io::Result<()> {
        if !self.destination.exists() {
            return rename_new(&self.path, &self.destination);
        }
        match exchange(&self.path, &self.destination) {
            Err(error) if is_unsupported(&error) => self.rename_aside(),
            result => result,
        }
    }

    /// The old folder steps aside for a moment, and comes back where the new one cannot take its name. A kill in that moment
    /// leaves both under hidden names.
    fn rename_aside(&self) -> io::Result<()> {
        let aside = with_suffix(&self.path, ".old");
        fs::rename(&self.destination, &aside)?;
        match rename_new(&self.path, &self.destination) {
            Ok(()) => fs::rename(&aside, &self.path),
            Err(error) => {
                fs::rename(&aside, &self.destination)?;
                Err(error)
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Of an old export that has been replaced, too: a failure here costs space, and the next writer tries again.
        remove(&self.path);
        let _ = fs::remove_file(lock_of(&self.path));
    }
}

fn lock_of(folder: &Path) -> PathBuf {
    with_suffix(folder, ".lock")
}

fn with_suffix(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn parent(destination: &Path) -> &Path {
    destination.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `.NAME.PROCESS-COUNT.tmp`: hidden, and one that nothing else has.
fn claim(parent: &Path, destination: &Path) -> io::Result<(PathBuf, File)> {
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

/// Removes what killed writers have left. Whatever fails here fails nothing.
fn sweep(parent: &Path, destination: &Path) {
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
            remove(&entry.path().with_extension(""));
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes a folder of ours with the files that we write, and nothing else.
fn remove(folder: &Path) {
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

fn is_ours(name: &str) -> bool {
    FILES.contains(&name) || name == Manifest::FILE_NAME
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
}

/// Renames, unless something has the name already.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_by(from, to, nix::fcntl::RenameFlags::RENAME_NOREPLACE) {
        Err(error) if is_unsupported(&error) => fs::rename(from, to),
        result => result,
    }
}

/// Gives each of two folders the other's name, in one step.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    rename_by(a, b, nix::fcntl::RenameFlags::RENAME_EXCHANGE)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn rename_by(from: &Path, to: &Path, flags: nix::fcntl::RenameFlags) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, renameat2};
    renameat2(AT_FDCWD, from, AT_FDCWD, to, flags).map_err(io::Error::from)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    // A folder does not take the name of another one that holds something.
    fs::rename(from, to)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn exchange(_a: &Path, _b: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
