use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::ManifestFile;
use super::files::{Refusal, check_name, digest, open};
use crate::format::LFS_POINTER;

/// What [`Manifest::verify`](crate::Manifest::verify) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Verification {
    /// Each file that is not as described, in the order of the manifest.
    pub faults: Vec<(String, Fault)>,
}

impl Verification {
    /// Whether every file is as described.
    pub fn is_intact(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.faults.iter().map(|(name, fault)| format!("{name}: {fault}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// How a file differs from its description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is not there.
    Missing,
    /// It has another size.
    Size {
        /// In the manifest.
        expected: u64,
        /// On the disk.
        found: u64,
    },
    /// Git LFS has not fetched it: its pointer is in its place.
    LfsPointer,
    /// Its size is right and its content another.
    Altered,
    /// It cannot be read, or must not be: a link, a folder.
    Unreadable {
        /// The reason.
        why: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Size { expected, found } if found < expected => {
                write!(f, "short, {found} of {expected} bytes")
            }
            Self::Size { expected, found } => write!(f, "too long, {found} bytes in place of {expected}"),
            Self::LfsPointer => f.write_str("a Git LFS pointer, not fetched yet"),
            Self::Altered => f.write_str("altered, its SHA-256 is another"),
            Self::Unreadable { why } => f.write_str(why),
        }
    }
}

/// Whether Git LFS has left the file in place of another that it has not fetched.
pub(super) fn is_lfs_pointer(file: &File) -> bool {
    let mut start = [0; LFS_POINTER.len()];
    file.read_exact_at(&mut start, 0).is_ok() && start == *LFS_POINTER
}

/// How a file differs from its description; none where it does not.
pub(super) fn compare(folder: &Path, described: &ManifestFile) -> Option<Fault> {
    let unreadable = |why: String| Some(Fault::Unreadable { why });
    if let Err(why) = check_name(&described.name) {
        return unreadable(why);
    }
    let file = match open(folder, &described.name) {
        Ok(file) => file,
        Err(Refusal::Why(why)) => return unreadable(why.into()),
        Err(Refusal::System(error)) if error.kind() == ErrorKind::NotFound => return Some(Fault::Missing),
        Err(Refusal::System(error)) => return unreadable(format!("cannot be read: {error}")),
    };
    let found = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) => return unreadable(format!("cannot be read: {error}")),
    };
    if found != described.bytes {
        return Some(match is_lfs_pointer(&file) {
            true => Fault::LfsPointer,
            false => Fault::Size { expected: described.bytes, found },
        });
    }
    match digest(file) {
        Ok((_, sha256)) => (sha256 != described.sha256).then_some(Fault::Altered),
        Err(error) => unreadable(format!("cannot be read: {error}")),
    }
}
