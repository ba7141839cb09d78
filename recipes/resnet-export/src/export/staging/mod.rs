//! A folder that appears whole or not at all.

mod leftovers;
mod rename;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use burn_nccl_records::Manifest;
use recipe_common::{RecipeError, Result};

use self::leftovers::{aside_of, claim, lock_of, remove, sweep};
use self::rename::{exchange, is_unsupported, rename_new};
use crate::package::FILES;

/// A folder under a hidden name beside the one that it will be; removed unless it is published.
///
/// A file beside it is locked for as long as its writer lives. Whoever next writes the same destination [cleans](clean) up
/// behind those whose lock is free, which a kill has left.
pub(super) struct Staging {
    path: PathBuf,
    destination: PathBuf,
    overwrite: bool,
    _lock: File,
}

/// Puts right what killed writers of the same destination have left beside it; what they had set aside has its name again.
pub(super) fn clean(destination: &Path) {
    if destination.file_name().is_some() {
        sweep(parent(destination), destination);
    }
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
    /// Creates the folder.
    pub(super) fn create(destination: &Path, overwrite: bool) -> Result<Self> {
        let failed = |error| RecipeError::file("create", destination, error);
        let parent = parent(destination);
        fs::create_dir_all(parent).map_err(failed)?;
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

    /// The old folder steps aside for a moment, and comes back where the new one cannot take its name. After a kill the next
    /// writer brings it back.
    fn rename_aside(&self) -> io::Result<()> {
        let aside = aside_of(&self.path);
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
        // By the lock the next writer finds an old export that could not be given its name back.
        if !aside_of(&self.path).exists() {
            let _ = fs::remove_file(lock_of(&self.path));
        }
    }
}

fn parent(destination: &Path) -> &Path {
    destination.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn is_ours(name: &str) -> bool {
    FILES.contains(&name) || name == Manifest::FILE_NAME
}
