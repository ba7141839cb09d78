//! Files that exist only until they are open.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::zip_end::{is_misread, repair};
use crate::source::contents::decompress;
use crate::{Error, OpenOptions, Result};

/// A copy in the folder for temporary files, which is removed again: the reader wants a file.
pub(super) struct TemporaryCopy(PathBuf);

impl TemporaryCopy {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn create() -> Result<(Self, File)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("burn-nccl-{}-{count}.pth", std::process::id()));
        let file = create_private(&path).map_err(Error::file("create", &path))?;
        Ok((Self(path), file))
    }

    pub(super) fn decompressed(path: &Path, options: &OpenOptions) -> Result<Self> {
        let (copy, mut file) = Self::create()?;
        decompress(path, options, &mut file)?;
        repair(&file).map_err(Error::file("write", &copy.0))?;
        Ok(copy)
    }

    /// A copy of an archive that the zip crate would misread; none of any other.
    pub(super) fn repaired(path: &Path) -> Result<Option<Self>> {
        let original = File::open(path).map_err(Error::file("open", path))?;
        if !is_misread(&original).map_err(Error::file("read", path))? {
            return Ok(None);
        }
        let (copy, mut file) = Self::create()?;
        io::copy(&mut &original, &mut file).map_err(Error::file("write", &copy.0))?;
        repair(&file).map_err(Error::file("write", &copy.0))?;
        Ok(Some(copy))
    }
}

/// A new file that nobody else can read, or have put a link in place of.
fn create_private(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

impl Drop for TemporaryCopy {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files harms nobody.
        let _ = fs::remove_file(&self.0);
    }
}
