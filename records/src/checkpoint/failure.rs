//! Why rank 0 could not do its part, as plain data that every rank can be told.

use std::io;
use std::path::Path;

use burn_nccl::Failure;
use serde::{Deserialize, Serialize};

/// The result of what rank 0 does for all ranks.
pub(super) type Result<T, E = CheckpointFailure> = std::result::Result<T, E>;

/// Why rank 0 could not take a folder or write a checkpoint; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointFailure {
    /// Another training saves in the folder.
    #[error(
        "another training that is still running saves there; wait until it has ended, or choose another folder"
    )]
    InUse,
    /// The folder holds a later checkpoint, which a resume would take for the newest.
    #[error(
        "it holds the complete later checkpoint step-{step}, which a resume would take for the newest; resume from that \
         one, move it away, or choose another folder"
    )]
    LaterCheckpoint {
        /// The step of the later checkpoint.
        step: u64,
    },
    /// No space is left.
    #[error(
        "cannot {action} {path}: {reason}; free space, or keep fewer checkpoints with keep_last and keep_best"
    )]
    DiskFull {
        /// What was tried.
        action: String,
        /// On which file or folder.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// Writing is not permitted.
    #[error("cannot {action} {path}: {reason}; choose a folder that this user may write to")]
    NotWritable {
        /// What was tried.
        action: String,
        /// On which file or folder.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// The system refused for another reason.
    #[error("cannot {action} {path}: {reason}; check the disk")]
    File {
        /// What was tried.
        action: String,
        /// On which file or folder.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// A tensor could not be read from its device or put into a file.
    #[error("a tensor could not be written: {reason}; the device may be out of memory or lost")]
    Tensor {
        /// The reason.
        reason: String,
    },
    /// The optimizer holds a state that could not be restored as it is.
    #[error("the state of the optimizer could not be restored from the file: {reason}")]
    Optimizer {
        /// What would be lost.
        reason: String,
    },
    /// The group failed, or a rank was lost, before all values had been read.
    #[error(
        "the ranks' group failed before all of it had been read: {failure}; the weights may be those of a step that did not \
         end, so resume from the checkpoint before"
    )]
    Group {
        /// What ended the group.
        failure: Failure,
    },
    /// The thread that writes panicked.
    #[error("the thread that writes checkpoints panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// Writing takes longer than it may.
    #[error(
        "it is still being written after {seconds} s; the disk or its network may hang, or raise write_timeout"
    )]
    TimedOut {
        /// The limit that has passed.
        seconds: u64,
    },
}

impl CheckpointFailure {
    /// The system's refusal of `path`, as a closure for `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::of(action, path, &error)
    }

    fn of(action: &'static str, path: &Path, error: &io::Error) -> Self {
        let (action, path, reason) = (action.to_owned(), path.display().to_string(), error.to_string());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, reason }
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::NotWritable { action, path, reason }
            }
            _ => Self::File { action, path, reason },
        }
    }

    /// What burn-pack says about writing `path`: of an error of the system it keeps only the text, in which the
    /// system's code is the one part that tells a full disk from the rest.
    pub(super) fn pack(path: &Path, error: impl std::fmt::Display) -> Self {
        let text = error.to_string();
        let code = text.rsplit_once("(os error ").and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
        match code {
            Some(code) => Self::of("write", path, &io::Error::from_raw_os_error(code)),
            None => Self::Tensor { reason: text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_even_where_only_its_text_is_left() {
        let path = Path::new("runs/model.bpk");
        for code in [28, 122] {
            let text = format!("I/O error: {}", io::Error::from_raw_os_error(code));
            let failure = CheckpointFailure::pack(path, text);
            assert!(matches!(failure, CheckpointFailure::DiskFull { .. }), "{failure:?}");
        }
        let failure = CheckpointFailure::pack(path, "no such thing");
        assert_eq!(failure, CheckpointFailure::Tensor { reason: "no such thing".into() });
    }

    #[test]
    fn a_failure_is_the_same_after_its_way_to_another_rank() {
        let failure =
            CheckpointFailure::io("write", Path::new("a"))(io::Error::from(io::ErrorKind::PermissionDenied));
        let told: CheckpointFailure = serde_json::from_slice(&serde_json::to_vec(&failure).unwrap()).unwrap();
        assert_eq!(told, failure);
        assert!(matches!(told, CheckpointFailure::NotWritable { .. }));
    }
}
