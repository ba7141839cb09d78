//! Where the checkpoint is that `--resume` means.

use std::fs;
use std::path::{Path, PathBuf};

use burn_nccl_records::checkpoint::{self, Found};

use super::choice::ResumeChoice;
use crate::error::{RecipeError, Result};
use crate::warning::warn_once;

/// Where a run keeps its checkpoints.
pub(crate) const CHECKPOINT_FOLDER: &str = "checkpoints";
/// The file by which the folder of one checkpoint is told from one with many.
const STATE_FILE: &str = "state.json";

/// The folder of the checkpoint to go on from; none for a new run.
///
/// # Errors
/// A usage error where a named folder has no complete checkpoint.
pub(crate) fn locate(choice: &ResumeChoice, out: Option<&Path>, recipe: &str) -> Result<Option<PathBuf>> {
    match choice {
        ResumeChoice::None => Ok(None),
        ResumeChoice::Folder(folder) => named(folder).map(Some),
        ResumeChoice::Auto => {
            let runs = out.map_or_else(|| newest_first(Path::new("runs"), recipe), |out| vec![out.into()]);
            for run in runs {
                if let Some(found) = newest(&run.join(CHECKPOINT_FOLDER))? {
                    return Ok(Some(found));
                }
            }
            warn_once("there is no complete checkpoint to resume: this is a new run");
            Ok(None)
        }
    }
}

/// The checkpoint of a folder that the user names.
fn named(folder: &Path) -> Result<PathBuf> {
    if folder.join(STATE_FILE).exists() {
        return Ok(folder.into());
    }
    let many = folder.join(CHECKPOINT_FOLDER);
    let many = if many.is_dir() { many } else { folder.into() };
    let found = if many.is_dir() { newest(&many)? } else { None };
    found.ok_or_else(|| {
        RecipeError::usage(
            format!("cannot resume from {}", folder.display()),
            if many.is_dir() { "it holds no complete checkpoint" } else { "there is no such folder" },
            "name a run's folder or one of its checkpoints, or use --resume auto",
        )
    })
}

/// The newest complete checkpoint of a folder of many; says which ones are passed over.
fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let Found { newest, broken } = checkpoint::find(folder)
        .map_err(|error| RecipeError::records("cannot look for checkpoints", error))?;
    for broken in broken {
        warn_once(&format!("passing over {}: {}", broken.path.display(), broken.why));
    }
    Ok(newest)
}

/// The folders of a recipe's runs that have default names. The time is in the name, so that the order is that of time.
fn newest_first(runs: &Path, recipe: &str) -> Vec<PathBuf> {
    let is_run = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let time = name.strip_prefix(recipe).and_then(|rest| rest.strip_prefix('-'));
        time.is_some_and(|time| time.starts_with(|first: char| first.is_ascii_digit()))
    };
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_run).collect();
    found.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // `-10` behind a time comes after `-9`.
        (name.len(), name)
    });
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_recipe_are_tried_from_the_newest_on() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "resnet-ddp-20260101-000000",
            "resnet-ddp-20260102-000000",
            "resnet-ddp-20260102-000000-2",
            "resnet-ddp-extra-20270101-000000",
            "resnet-single-20270101-000000",
        ];
        names.iter().for_each(|name| fs::create_dir(folder.path().join(name)).unwrap());
        let found = newest_first(folder.path(), "resnet-ddp");
        let expected = [2, 1, 0].map(|index| folder.path().join(names[index]));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_folder_without_a_checkpoint_is_refused_and_auto_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let named = ResumeChoice::Folder(folder.path().into());
        let error = locate(&named, None, "x").unwrap_err();
        assert_eq!((error.exit_code(), error.cause.as_str()), (2, "it holds no complete checkpoint"));
        let missing = ResumeChoice::Folder(folder.path().join("missing"));
        assert_eq!(locate(&missing, None, "x").unwrap_err().cause, "there is no such folder");
        assert_eq!(locate(&ResumeChoice::Auto, Some(folder.path()), "x").unwrap(), None);
    }
}
