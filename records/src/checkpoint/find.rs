//! Finds the newest complete checkpoint.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
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
    let choice = decide_by(group, "find", || {
        let found = newest(folder).map_err(CheckpointFailure::io("read", folder))?;
        Ok(Choice::of(&found.0))
    })?;
    let choice: Choice =
        choice.map_err(|failure| Error::CheckpointFolder { folder: folder.into(), failure })?;
    let sees = gather(group, choice.is_seen_in(folder))?;
    let ranks: Vec<usize> = (0..sees.len()).filter(|rank| !sees[*rank]).collect();
    let path = choice.newest.as_ref().map(|(name, _)| folder.join(name));
    if !ranks.is_empty() {
        return Err(Error::CheckpointNotVisible { folder: folder.into(), newest: path, ranks });
    }
    let broken = choice.broken.into_iter().map(|(name, why)| Broken { path: folder.join(name), why });
    Ok(Found { newest: path, broken: broken.collect() })
}

/// As [`find`], with the state of the checkpoint.
pub(super) fn newest(folder: &Path) -> std::io::Result<(Found, Option<TrainingState>)> {
    let mut broken = Vec::new();
    for (step, path) in candidates(folder)? {
        let state = contents::verify(&path).and_then(|state| match state.step {
            found if found == step => Ok(state),
            found => Err(format!("its state is that of step {found}")),
        });
        match state {
            Ok(state) => return Ok((Found { newest: Some(path), broken }, Some(state))),
            Err(why) => broken.push(Broken { path, why }),
        }
    }
    Ok((Found { newest: None, broken }, None))
}

/// The checkpoints in `folder`, the greatest step first. One that its writer had retired and died before it put another
/// in its place is the last of its step.
fn candidates(folder: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
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
    Ok(ranked.into_iter().map(|(step, _, path)| (step, path)).collect())
}

/// What rank 0 chose, in names: the folder may be mounted elsewhere on another machine.
#[derive(Serialize, Deserialize)]
struct Choice {
    /// With the hash of its manifest, by which another rank knows that it sees the same.
    newest: Option<(String, String)>,
    broken: Vec<(String, String)>,
}

impl Choice {
    fn of(found: &Found) -> Self {
        let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.display().to_string());
        Self {
            newest: found.newest.as_ref().map(|path| (name(path), fingerprint(path).unwrap_or_default())),
            broken: found.broken.iter().map(|broken| (name(&broken.path), broken.why.clone())).collect(),
        }
    }

    fn is_seen_in(&self, folder: &Path) -> bool {
        match &self.newest {
            Some((name, hash)) => fingerprint(&folder.join(OsString::from(name))).as_deref() == Some(hash),
            None => candidates(folder).is_ok_and(|candidates| {
                candidates.iter().all(|(_, path)| contents::check_sizes(path).is_err())
            }),
        }
    }
}

/// The SHA-256 of a checkpoint's manifest, which has those of all its files.
fn fingerprint(checkpoint: &Path) -> Option<String> {
    let manifest = fs::read(checkpoint.join(contents::MANIFEST)).ok()?;
    Some(format!("{:x}", Sha256::digest(manifest)))
}
