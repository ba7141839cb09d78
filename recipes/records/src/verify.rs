//! `verify`: whether a folder still holds what its manifest says.

use std::path::PathBuf;

use burn_nccl_records::{Fault, Manifest};
use clap::Args;
use recipe_common::{RecipeError, Result};

use crate::source::records;
use recipe_common::output::{print, size};

/// Check the files of a folder against its manifest.json; the exit code is 1 where one is missing, short or altered.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder of the manifest.
    folder: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = match options.folder.file_name() {
        Some(name) if name == Manifest::FILE_NAME && options.folder.is_file() => {
            options.folder.parent().unwrap_or(&options.folder)
        }
        _ => &options.folder,
    };
    if !folder.join(Manifest::FILE_NAME).exists() {
        return Err(RecipeError::usage(
            format!("cannot verify {}", folder.display()),
            format!("it has no {}", Manifest::FILE_NAME),
            "write one with recipe-records manifest",
        ));
    }
    let manifest = Manifest::read(folder)
        .map_err(|error| records(format!("cannot verify {}", folder.display()), &error))?;
    let found = manifest.verify(folder);
    if found.is_intact() {
        let bytes = manifest.files.iter().map(|file| file.bytes).sum();
        return print(&format!(
            "{}: {} files, {}, all as in the manifest\n",
            folder.display(),
            manifest.files.len(),
            size(bytes)
        ));
    }
    print(&format!("{found}\n"))?;
    let is_pointer = |(_, fault): &(String, Fault)| *fault == Fault::LfsPointer;
    Err(RecipeError::failure(
        format!("{} is not what its manifest says", folder.display()),
        format!("{} of {} files differ, as listed", found.faults.len(), manifest.files.len()),
        if found.faults.iter().any(is_pointer) {
            "run git lfs pull: a file is a Git LFS pointer"
        } else {
            "fetch or copy these files again"
        },
    ))
}
