//! What `--resume` can be.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// Which checkpoint a run goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResumeChoice {
    /// None: a new run.
    #[default]
    None,
    /// The newest complete one of the run folder, or of the recipe's runs; as [`Anew`](Self::Anew) where there is none.
    Auto,
    /// None: a new run, which takes the place of one that was interrupted before its first checkpoint.
    Anew,
    /// That of this folder: a checkpoint, or a run with checkpoints, of which it is the newest.
    Folder(PathBuf),
}

/// The words that name no folder.
const WORDS: [(&str, ResumeChoice); 3] =
    [("none", ResumeChoice::None), ("auto", ResumeChoice::Auto), ("anew", ResumeChoice::Anew)];

impl ResumeChoice {
    /// The value on the command line.
    pub fn argument(&self) -> OsString {
        match (self, WORDS.iter().find(|(_, choice)| choice == self)) {
            (_, Some((word, _))) => word.into(),
            (Self::Folder(folder), None) => folder.into(),
            (_, None) => OsString::new(),
        }
    }
}

impl From<OsString> for ResumeChoice {
    fn from(text: OsString) -> Self {
        let word = WORDS.into_iter().find(|(word, _)| text == OsStr::new(word));
        word.map_or_else(|| Self::Folder(text.into()), |(_, choice)| choice)
    }
}

impl fmt::Display for ResumeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.argument().display().fmt(f)
    }
}
