//! What `--resume` can be.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Which checkpoint a run goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResumeChoice {
    /// None: a new run.
    #[default]
    None,
    /// The newest complete one of the run folder, or of the recipe's runs; a new run where there is none.
    Auto,
    /// That of this folder: a checkpoint, or a run with checkpoints, of which it is the newest.
    Folder(PathBuf),
}

impl FromStr for ResumeChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "none" => Self::None,
            "auto" => Self::Auto,
            folder => Self::Folder(folder.into()),
        })
    }
}

impl fmt::Display for ResumeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Folder(folder) => folder.display().fmt(f),
        }
    }
}
