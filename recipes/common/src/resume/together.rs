//! One checkpoint for all ranks that are started again.

use std::path::Path;
use std::time::{Duration, Instant};

use burn_nccl::ProcessGroup;
use burn_nccl::launch::restart_count;
use serde::{Deserialize, Serialize};

use super::{CHECKPOINT_FOLDER, Resume};
use crate::error::{RecipeError, Result};

/// How long a network file system may show a folder as it was before.
const VISIBLE_WITHIN: Duration = Duration::from_secs(10);

/// A checkpoint, for ranks that may see it under another path.
#[derive(PartialEq, Serialize, Deserialize)]
struct Chosen {
    name: String,
    identity: String,
}

impl Chosen {
    fn of(resume: &Resume) -> Result<Self> {
        let name = resume.checkpoint.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, identity: resume.identity()? })
    }
}

/// After a restart: what rank 0 goes on from, and whether this rank had found something else in `out`, which other machines
/// may see as it was some seconds ago. What does not become visible in time stays as it is, for the comparison of all options.
///
/// # Errors
/// Where a rank is lost.
pub(crate) fn follow_rank_0(
    own: Option<Resume>,
    out: Option<&Path>,
    group: &ProcessGroup,
) -> Result<(Option<Resume>, bool)> {
    const WHAT: &str = "the ranks did not agree on the checkpoint to go on from";
    if restart_count() == 0 {
        return Ok((own, false));
    }
    let found = own.as_ref().map(Chosen::of).transpose()?;
    let message =
        serde_json::to_vec(&found).map_err(|error| RecipeError::from_text(WHAT, &error.to_string()))?;
    let all = group.all_gather_bytes(&message).map_err(|error| RecipeError::group(WHAT, error))?;
    let chosen = all.first().and_then(|first| serde_json::from_slice::<Option<Chosen>>(first).ok()).flatten();
    match (chosen, out) {
        (Some(chosen), Some(out)) if found.as_ref() != Some(&chosen) => {
            // The others wait for this rank in the next collective.
            let limit = VISIBLE_WITHIN.min(group.options().timeout / 2);
            let seen = wait_for(&chosen, &out.join(CHECKPOINT_FOLDER), limit);
            let is_other = seen.is_some();
            Ok((seen.or(own), is_other))
        }
        _ => Ok((own, false)),
    }
}

fn wait_for(chosen: &Chosen, folder: &Path, limit: Duration) -> Option<Resume> {
    let (start, path) = (Instant::now(), folder.join(&chosen.name));
    loop {
        // A network file system looks anew when the folder is read.
        let _ = std::fs::read_dir(folder).map(Iterator::count);
        let seen = path.join("manifest.json").exists().then(|| Resume::open(&path).ok()).flatten();
        let same = seen.filter(|seen| Chosen::of(seen).is_ok_and(|seen| seen == *chosen));
        if same.is_some() || start.elapsed() > limit {
            return same;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
