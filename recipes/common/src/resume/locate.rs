//! Where the checkpoint is that `--resume` means.

use std::fs;
use std::path::{Path, PathBuf};

use burn_nccl_records::checkpoint::{self, Found};

use super::choice::ResumeChoice;
use crate::error::{RecipeError, Result};
use crate::warning::warn_once;

/// Where a run keeps its checkpoints.
pub(crate) const CHECKPOINT_FOLDER: &str = "checkpoints";

/// The folder of the checkpoint to go on from; none for a new run.
///
/// # Errors
/// A usage error where a run that is named has no complete checkpoint. What is wrong with a checkpoint that is named
/// itself, only opening it tells.
pub(crate) fn locate(choice: &ResumeChoice, out: Option<&Path>, recipe: &str) -> Result<Option<PathBuf>> {
    match choice {
        ResumeChoice::None | ResumeChoice::Anew => Ok(None),
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

/// The checkpoint of a run that the user names, or the checkpoint that is named.
fn named(folder: &Path) -> Result<PathBuf> {
    let many = folder.join(CHECKPOINT_FOLDER);
    if !many.is_dir() {
        return Ok(folder.into());
    }
    newest(&many)?.ok_or_else(|| {
        RecipeError::usage(
            format!("cannot resume from {}", folder.display()),
            "it holds no complete checkpoint",
            "name another run or a checkpoint, or use --resume auto",
        )
    })
}

/// The newest complete checkpoint of a run, where it has one.
///
/// # Errors
/// Where its folder cannot be read.
pub(crate) fn newest_of(run: &Path) -> Result<Option<PathBuf>> {
    newest(&run.join(CHECKPOINT_FOLDER))
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

/// The folders of a recipe's runs that have default names, which have the time in them.
fn newest_first(runs: &Path, recipe: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((begun(entry.file_name().to_str()?, recipe)?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// The time in the name of a run of `recipe`, and its number among those of the same second.
fn begun(name: &str, recipe: &str) -> Option<(String, u64)> {
    let rest = name.strip_prefix(recipe)?.strip_prefix('-')?;
    let mut parts = rest.split('-');
    let (day, time) = (parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = parts.next().map_or(Some(1), |number| number.parse().ok())?;
    (is_number(day) && is_number(time) && parts.next().is_none()).then(|| (format!("{day}-{time}"), number))
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
            "resnet-ddp-20260102-000000-10",
            "resnet-ddp-20260103-000000",
            "resnet-ddp-extra-20270101-000000",
            "resnet-single-20270101-000000",
        ];
        names.iter().for_each(|name| fs::create_dir(folder.path().join(name)).unwrap());
        let found = newest_first(folder.path(), "resnet-ddp");
        let expected = [4, 3, 2, 1, 0].map(|index| folder.path().join(names[index]));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_folder_without_a_checkpoint_is_refused_and_auto_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(CHECKPOINT_FOLDER)).unwrap();
        let named = ResumeChoice::Folder(folder.path().into());
        let error = locate(&named, None, "x").unwrap_err();
        assert_eq!((error.exit_code(), error.cause.as_str()), (2, "it holds no complete checkpoint"));
        assert_eq!(locate(&ResumeChoice::Auto, Some(folder.path()), "x").unwrap(), None);
    }
}
