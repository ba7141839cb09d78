//! What the user is told when a recipe cannot go on.

use std::path::Path;

use burn_nccl::launch::LaunchError;
use burn_nccl::{Error as GroupError, Failure};
use burn_nccl_datasets::DataError;
use burn_nccl_records::Error as RecordsError;

/// The result of everything in a recipe that can fail.
pub type Result<T, E = RecipeError> = std::result::Result<T, E>;

/// Who has to act on a [`RecipeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command line, the configuration or the launch environment asks for something that cannot be: exit code 2.
    Usage,
    /// The machine, the data or the training failed: exit code 1.
    Failure,
    /// This rank stops because another one did, which will say more: exit code 1.
    Consequence,
}

/// The end of a recipe in three texts, each of which becomes one line on the terminal.
///
/// Recipes are programs: nobody matches on what went wrong, but a user has to read it. The typed errors of the
/// libraries are turned into one of these where the recipe knows what it was trying to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cause}; {remedy}")]
pub struct RecipeError {
    /// Who has to act.
    pub kind: ErrorKind,
    /// What failed, in the recipe's words.
    pub what: String,
    /// Why.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

impl RecipeError {
    /// An error in what the user asked for.
    pub fn usage(what: impl Into<String>, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Usage, what: what.into(), cause: cause.into(), remedy: remedy.into() }
    }

    /// An error of the machine, the data or the training.
    pub fn failure(what: impl Into<String>, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failure, ..Self::usage(what, cause, remedy) }
    }

    /// A failure whose text is a library's, which ends in the remedy.
    pub fn from_text(what: impl Into<String>, text: &str) -> Self {
        let (cause, remedy) = split_remedy(text);
        Self::failure(what, cause, remedy)
    }

    /// A failure to load images.
    pub fn data(what: impl Into<String>, error: DataError) -> Self {
        match error {
            // The library's remedy is a setting that training has no option for.
            DataError::NoFullBatch { samples, batch_size } => Self::failure(
                what,
                format!("each rank has {samples} images, less than one batch of {batch_size}"),
                format!("use --batch-size {samples} or smaller, or fewer ranks"),
            ),
            error => Self::from_text(what, &error.to_string()),
        }
    }

    /// A failure to read or write weights or a checkpoint.
    pub fn records(what: impl Into<String>, error: RecordsError) -> Self {
        match error {
            // Another rank may be the cause.
            RecordsError::Group(error) => Self::group(what, error),
            RecordsError::Mismatch { report, .. } => {
                let text = report.to_string();
                // The last line speaks to programmers.
                let (cause, _) = text.rsplit_once('\n').unwrap_or((&text, ""));
                Self::failure(
                    what,
                    cause,
                    "give the weights of this network, or the --model and --stem of the file",
                )
            }
            error => Self::from_text(what, &options_for(error.to_string())),
        }
    }

    /// A launch environment that cannot be meant, such as a half-set one.
    pub fn environment(error: GroupError) -> Self {
        Self {
            kind: ErrorKind::Usage,
            ..Self::from_text("cannot tell which rank this is", &error.to_string())
        }
    }

    /// A failure of the process group.
    pub fn group(what: impl Into<String>, error: GroupError) -> Self {
        let kind = match error.failure() {
            Some(Failure::PeerLost { .. } | Failure::PeerLeft { .. } | Failure::Aborted { .. }) => {
                ErrorKind::Consequence
            }
            _ => ErrorKind::Failure,
        };
        // The library speaks to programmers; who runs a recipe has an option.
        let text = ["GroupOptions::with_timeout", "GroupOptions::with_connect_timeout"]
            .iter()
            .fold(error.to_string(), |text, name| text.replace(name, "--timeout-seconds"));
        Self { kind, ..Self::from_text(what, &text) }
    }

    /// A failure to start or watch the ranks.
    pub fn launch(error: LaunchError) -> Self {
        Self::from_text("the ranks were not started", &error.to_string())
    }

    /// A failure to write or read a file of the run.
    pub fn file(action: &str, path: &Path, error: impl std::fmt::Display) -> Self {
        let what = format!("cannot {action} {}", path.display());
        Self::failure(what, error.to_string(), "check that the folder exists, is writable and has space")
    }

    /// The exit code of a process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Usage => 2,
            ErrorKind::Failure | ErrorKind::Consequence => 1,
        }
    }

    /// The three lines for the terminal.
    pub fn lines(&self) -> String {
        format!("error: {}\ncause: {}\nhelp:  {}", self.what, self.cause, self.remedy)
    }
}

/// A message of the library of records, which speaks to programmers, with the options that a user has in their place.
fn options_for(text: String) -> String {
    [
        ("`OpenOptions::key`", "`recipe-records convert --key`"),
        ("`OpenOptions::max_expanded_bytes`", "`recipe-records convert --max-expanded-mb`"),
        ("keep_last and keep_best", "--keep-last and --keep-best"),
    ]
    .iter()
    .fold(text, |text, (name, option)| text.replace(name, option))
}

/// Splits a library's message, which is `what: why; remedy` or `what and why: remedy`, before the remedy.
pub(crate) fn split_remedy(text: &str) -> (&str, &str) {
    text.rsplit_once("; ").or_else(|| text.rsplit_once(": ")).unwrap_or((text, "see --help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_error_becomes_three_lines() {
        let error = RecipeError::data("cannot load the training images", DataError::EmptyDataset);
        assert_eq!(
            error.lines(),
            "error: cannot load the training images\ncause: the dataset is empty\n\
             help:  a loader needs at least one image"
        );
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn the_remedy_is_what_follows_the_last_semicolon() {
        assert_eq!(split_remedy("a: b; c: d; do e: f"), ("a: b; c: d", "do e: f"));
        assert_eq!(split_remedy("x is 0: use 1"), ("x is 0", "use 1"));
        assert_eq!(split_remedy("plain"), ("plain", "see --help"));
    }

    #[test]
    fn a_message_about_records_names_the_options_of_the_command_line() {
        let error = RecordsError::TooLarge { path: "x".into(), from: 1, bytes: 3, limit: 2 };
        let text = RecipeError::records("cannot begin", error).to_string();
        assert!(text.contains("--max-expanded-mb") && !text.contains("OpenOptions"), "{text}");
    }

    #[test]
    fn too_few_images_for_the_batch_or_the_ranks_are_failures_of_the_data() {
        let error = RecipeError::data("x", DataError::FewerImagesThanRanks { images: 3, world_size: 8 });
        assert_eq!(error.exit_code(), 1);
        let error = RecipeError::data("x", DataError::NoFullBatch { samples: 3, batch_size: 8 });
        assert_eq!(error.exit_code(), 1);
        assert_eq!(error.remedy, "use --batch-size 3 or smaller, or fewer ranks");
    }
}
