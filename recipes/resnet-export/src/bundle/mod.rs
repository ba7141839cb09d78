//! `bundle`: one file that is program and network.

mod layout;
mod write;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use recipe_common::{RecipeError, Result};

use self::layout::{Layout, program};
use crate::package::{Package, PackageBytes};

/// Make one program of this one and an export, which classifies and serves without any other file.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder that `export` wrote.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The program to write.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Write it in place of a file of that name.
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    write::write(&options.from, &options.to, options.overwrite)
}

/// Opens the folder, or the package within this program where there is none.
///
/// # Errors
/// As [`Package::open`]; where this program has no package, or one that is cut off or altered.
pub(crate) fn open_package(from: Option<&Path>) -> Result<Package> {
    match from {
        Some(folder) => Package::open(folder),
        None => open_own(),
    }
}

fn open_own() -> Result<Package> {
    let (file, path) = program()?;
    let layout = Layout::read(&file, &path)?.ok_or_else(|| {
        RecipeError::usage(
            "there is no network to run",
            "--from is not given, and this program has no network within",
            "give --from with a folder that `export` wrote, or make a program of both by `bundle`",
        )
    })?;
    let parts = layout.parts();
    let read = |index: usize| -> Result<Vec<u8>> {
        let (offset, length) = parts[index];
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map_err(|error| RecipeError::file("read", &path, error))?;
        Ok(bytes)
    };
    let (model, labels, preprocess, manifest) = (read(0)?, read(1)?, read(2)?, read(3)?);
    layout.check_manifest(&manifest, &path)?;
    // The manifest has the hashes of the other three.
    let files = PackageBytes { model: &model, labels: &labels, preprocess: &preprocess, manifest: &manifest };
    Package::from_bytes(files, &path)
}

/// What is said of a program whose package cannot be used.
fn damaged(path: &Path, cause: impl Into<String>) -> RecipeError {
    let what = format!("the network within {} cannot be used", path.display());
    RecipeError::failure(what, cause, "copy the program again, or make it anew by `bundle`")
}

/// Opens the file for reading at any place.
fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| RecipeError::file("read", path, error))
}
