//! What can go wrong with a file of weights or a checkpoint.

use std::io;
use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a file of weights or of a checkpoint.
///
/// Each text says what failed, why, and what to do; `Debug` gives the same text.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file or folder.
    #[error("cannot {action} {}: {source}; check that it exists, is accessible and that the disk has space", path.display())]
    File {
        /// What was tried: `read`, `write`, `create`, `rename`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// The system's refusal of `path`, as a closure for `map_err`.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.into(), source }
    }
}
