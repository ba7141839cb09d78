//! Finds the newest complete checkpoint.

use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use burn_nccl::ProcessGroup;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::agreement::{decide_by, gather};
use super::contents;
use super::failure::CheckpointFailure;
use super::layout::{self, Name};
use super::state::TrainingState;
use crate::error::{Error, Result};
use crate::sha256;

/// What [`find`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The newest complete checkpoint.
    pub newest: Option<PathBuf>,
    /// What would be newer and is not complete, the newest first.
    pub broken: Vec<Broken>,
}

/// A checkpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The newest complete checkpoint in `folder`: the one with the greatest step whose manifest is there, whose files have
/// the hashes in it, and whose state can be read. A folder that does not exist has none.
///
/// # Errors
/// [`Error::File`] where the folder cannot be read.
pub fn find(folder: impl AsRef<Path>) -> Result<Found> {
    let folder = folder.as_ref();
    newest(folder).map(|(found, _)| found).map_err(Error::file("read", folder))
}

/// As [`find`], decided by rank 0 for all ranks, so that none resumes from another checkpoint than the rest. Paths are
/// those of this rank's `folder`.
///
/// # Errors
/// On every rank: [`Error::CheckpointNotVisible`] where a rank does not see the checkpoint that rank 0 found, or sees one
/// where rank 0 found none; [`Error::CheckpointFolder`] where rank 0 cannot read the folder; [`Error::Group`].
pub fn find_agreed(folder: impl AsRef<Path>, group: Option<&ProcessGroup>) -> Result<Found> {
    let folder = folder.as_ref();
    let path = folder.to_path_buf();
    let choice = decide_by(group, "find", move || {
        let (found, _) = newest(&path).map_err(CheckpointFailure::io("read", &path))?;
        Ok(Choice::of(&found))
    })?;
    let choice: Choice =
        choice.map_err(|failure| Error::CheckpointFolder { folder: folder.into(), failure })?;
    let sees = gather(group, choice.is_seen_in(folder))?;
    let ranks: Vec<usize> = (0..sees.len()).filter(|rank| !sees[*rank]).collect();
    let path = choice.newest.as_ref().map(|newest| folder.join(&newest.name));
    if !ranks.is_empty() {
        return Err(Error::CheckpointNotVisible { folder: folder.into(), newest: path, ranks });
    }
    let broken = choice.broken.into_iter().map(|(at, why)| Broken { path: folder.join(at.name), why });
    Ok(Found { newest: path, broken: broken.collect() })
}

/// As [`find`], with the state of the checkpoint.
pub(super) fn newest(folder: &Path) -> io::Result<(Found, Option<TrainingState>)> {
    newest_by(folder, contents::verify)
}

/// As [`find`], by the hash of the weights and the sizes of the other files, for whoever wants no more than the weights.
pub(crate) fn newest_weights(folder: &Path) -> io::Result<Found> {
    newest_by(folder, contents::check_weights).map(|(found, _)| found)
}

/// The newest checkpoint in `folder` that is complete by `check`, which says what is wrong otherwise.
fn newest_by<T>(
    folder: &Path,
    check: impl Fn(&Path) -> std::result::Result<T, String>,
) -> io::Result<(Found, Option<T>)> {
    let mut broken = Vec::new();
    for path in candidates(folder)? {
        match check(&path) {
            Ok(state) => return Ok((Found { newest: Some(path), broken }, Some(state))),
            Err(why) => broken.push(Broken { path, why }),
        }
    }
    Ok((Found { newest: None, broken }, None))
}

/// The checkpoints in `folder`, the greatest step first. One that its writer had retired and died before it put another
/// in its place is the last of its step.
fn candidates(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match layout::entries(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let rank = |(name, path): (Name, PathBuf)| match name {
        Name::Step(step) => Some((step, true, path)),
        Name::Retired(step) => Some((step, false, path)),
        Name::Staged(_) => None,
    };
    let mut ranked: Vec<(u64, bool, PathBuf)> = entries.into_iter().filter_map(rank).collect();
    ranked.sort_by_key(|(step, has_its_name, _)| Reverse((*step, *has_its_name)));
    Ok(ranked.into_iter().map(|(_, _, path)| path).collect())
}

/// What rank 0 chose, in names: the folder may be mounted elsewhere on another machine.
#[derive(Serialize, Deserialize)]
struct Choice {
    newest: Option<Seen>,
    broken: Vec<(Seen, String)>,
}

impl Choice {
    fn of(found: &Found) -> Self {
        Self {
            newest: found.newest.as_deref().map(Seen::of),
            broken: found.broken.iter().map(|broken| (Seen::of(&broken.path), broken.why.clone())).collect(),
        }
    }

    /// Whether a rank would choose the same in its `folder`. Where rank 0 chose none, only what it found broken may seem
    /// complete, as altered bytes do not show by the sizes.
    fn is_seen_in(&self, folder: &Path) -> bool {
        match &self.newest {
            Some(newest) => newest.manifest.is_some() && *newest == Seen::of(&folder.join(&newest.name)),
            None => candidates(folder).is_ok_and(|candidates| {
                candidates.iter().all(|path| {
                    contents::check(path).is_err() || {
                        let seen = Seen::of(path);
                        self.broken.iter().any(|(broken, _)| *broken == seen)
                    }
                })
            }),
        }
    }
}

/// A checkpoint as a rank sees it.
#[derive(PartialEq, Serialize, Deserialize)]
struct Seen {
    name: String,
    /// The SHA-256 of its manifest, which has those of all its files.
    manifest: Option<String>,
}

impl Seen {
    fn of(path: &Path) -> Self {
        let name = path.file_name().map_or_else(String::new, |name| name.display().to_string());
        let manifest = fs::read(path.join(contents::MANIFEST)).ok();
        Self { name, manifest: manifest.map(|manifest| sha256::hex(Sha256::new_with_prefix(manifest))) }
    }
}
