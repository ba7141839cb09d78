//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Refuses a destination that cannot or may not be written, before anything is.
pub(crate) fn check_destination(path: &Path, overwrite: bool) -> Result<()> {
    let not_a_file = |why| Err(Error::NotAFile { path: path.into(), why });
    if path.file_name().is_none() {
        return not_a_file("it does not end with the name of a file");
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => not_a_file("it is a folder"),
        Ok(_) if !overwrite => Err(Error::Exists { path: path.into() }),
        Ok(found) if !found.is_file() && !found.is_symlink() => not_a_file("it is a device or a pipe"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::file("write", path)(error)),
    }
}

/// A file under a temporary name beside its destination; removed unless it is published.
///
/// It holds a lock for as long as its writer lives. Whoever next writes the same destination removes those without, which
/// a kill has left behind.
pub(crate) struct Scratch {
    file: File,
    path: PathBuf,
    destination: PathBuf,
    renamed: bool,
}

impl Scratch {
    /// Creates the file. With its size known, reserves the space, so that a full disk is an error now.
    pub(crate) fn create(destination: &Path, bytes: Option<u64>) -> Result<Self> {
        sweep(destination);
        let (file, path) = create_locked(destination)?;
        let scratch = Self { file, path, destination: destination.into(), renamed: false };
        if let Some(bytes) = bytes {
            reserve(&scratch.file, bytes).map_err(Error::file("write", destination))?;
        }
        Ok(scratch)
    }

    /// An error of writing, told in terms of the destination.
    pub(crate) fn write_error(&self) -> impl Fn(io::Error) -> Error + use<> {
        let destination = self.destination.clone();
        move |source| Error::File { action: "write", path: destination.clone(), source }
    }

    /// Gives the file its name in one step.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if something got the name in the meantime and may not be replaced; else what the system says.
    pub(crate) fn publish(mut self, durable: bool, overwrite: bool) -> Result<()> {
        if durable {
            self.file.sync_all().map_err(Error::file("flush", &self.destination))?;
        }
        if overwrite {
            self.keep_permissions()?;
            self.rename()?;
        } else {
            self.link()?;
        }
        if durable { sync_folder(&parent(&self.destination)) } else { Ok(()) }
    }

    /// A hard link refuses an existing name in the same call that makes it. Where there are none, a look before the
    /// rename leaves a moment in which another writer may win.
    fn link(&mut self) -> Result<()> {
        match fs::hard_link(&self.path, &self.destination) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Error::Exists { path: self.destination.clone() })
            }
            Err(_) => {
                check_destination(&self.destination, false)?;
                self.rename()
            }
        }
    }

    fn rename(&mut self) -> Result<()> {
        fs::rename(&self.path, &self.destination).map_err(Error::file("rename", &self.destination))?;
        self.renamed = true;
        Ok(())
    }

    /// A private file stays private when it is replaced.
    fn keep_permissions(&self) -> Result<()> {
        match fs::symlink_metadata(&self.destination) {
            Ok(old) if old.is_file() => self
                .file
                .set_permissions(old.permissions())
                .map_err(Error::file("set the permissions of", &self.destination)),
            _ => Ok(()),
        }
    }
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After a rename the old name may already be another machine's.
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the names in `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file("flush", folder))
}

/// Writes a small file, such as JSON, whole or not at all: under a name that nothing else has, which then takes that of
/// `path` in one step. A link at `path` is replaced and not followed, and a file that is replaced keeps its permissions.
///
/// With `durable`, it returns once file and name are on the disk. Without `overwrite`, what is there stays.
///
/// # Errors
///
/// [`Error::Exists`] where `path` is there and may not be overwritten; [`Error::NotAFile`] where it cannot be a file;
/// [`Error::File`] with what the system says. `path` is as before then, except after a failed flush of its folder.
pub fn write_file(
    path: impl AsRef<Path>,
    bytes: impl AsRef<[u8]>,
    durable: bool,
    overwrite: bool,
) -> Result<()> {
    let path = path.as_ref();
    check_destination(path, overwrite)?;
    let mut scratch = Scratch::create(path, None)?;
    let failed = scratch.write_error();
    scratch.write_all(bytes.as_ref()).map_err(failed)?;
    scratch.publish(durable, overwrite)
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.into(),
        _ => PathBuf::from("."),
    }
}

/// `.NAME.PROCESS-COUNT.tmp`: hidden, and never the name of two files of one machine.
fn create_locked(destination: &Path) -> Result<(File, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = destination.file_name().unwrap_or_default().to_string_lossy();
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = destination.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()));
        // Never opens what is there already, be it another machine's file or a link that someone planted.
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                let locked = file.try_lock();
                // Between the two calls another writer may have taken it for a leftover.
                if !matches!(locked, Err(TryLockError::WouldBlock)) && is_at(&file, &path) {
                    return Ok((file, path));
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::file("create", destination)(error)),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Removes what killed writers of the same destination have left. Best effort: whatever fails here fails nothing.
fn sweep(destination: &Path) {
    let name = format!(".{}.", destination.file_name().unwrap_or_default().to_string_lossy());
    let Ok(entries) = fs::read_dir(parent(destination)) else { return };
    for entry in entries.flatten() {
        let entry_name = entry.file_name();
        let counted = entry_name.to_str().and_then(|entry| entry.strip_prefix(&name)?.strip_suffix(".tmp"));
        let ours = counted.and_then(|counted| counted.split_once('-')).is_some_and(|(process, count)| {
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits(process) && digits(count)
        });
        if !ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Ok(file) = OpenOptions::new().write(true).open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Reserves the space of a file whose size is known: a full disk shows at once, and the file lies in one piece, which
/// makes the writes faster by a third on ext4.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};
    let Ok(bytes) = i64::try_from(bytes) else { return Err(ErrorKind::FileTooLarge.into()) };
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(error @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)) => Err(error.into()),
        // Not every file system can.
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}
