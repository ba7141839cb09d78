//! Writing a bundle.

use std::fs::{self, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use recipe_common::{RecipeError, Result};
use tempfile::NamedTempFile;

use super::layout::{Layout, PARTS, program, start_mark};
use super::open;
use crate::package::{DEPLOYED, Package, PackageBytes, read_at_most};

/// Writes this program, without a package that it has, and the package in `from` to `to`, in one step.
pub(super) fn write(from: &Path, to: &Path, overwrite: bool) -> Result<()> {
    check(to, overwrite)?;
    let parts = read_parts(from)?;
    let [model, labels, preprocess, manifest] = &parts;
    let files = PackageBytes { model, labels, preprocess, manifest };
    // A program that refuses its own package is of no use to anybody.
    Package::from_bytes(files, from)?;
    let (own, own_path) = program()?;
    let own_bytes = match Layout::read(&own, &own_path)? {
        Some(layout) => layout.program,
        None => own.metadata().map_err(|error| RecipeError::file("read", &own_path, error))?.len(),
    };
    let bytes = publish(own.take(own_bytes), own_bytes, &parts, to, overwrite)
        .map_err(|error| RecipeError::file("write", to, error))?;
    println!(
        "wrote {}: {:.1} MB, of which {:.1} MB are the network",
        to.display(),
        bytes as f64 / 1e6,
        parts[0].len() as f64 / 1e6
    );
    Ok(())
}

/// Refuses a name that cannot or may not be written, before all the work.
fn check(to: &Path, overwrite: bool) -> Result<()> {
    let refused =
        |cause, remedy| Err(RecipeError::usage(format!("cannot write {}", to.display()), cause, remedy));
    match fs::symlink_metadata(to) {
        Ok(found) if found.is_dir() => refused("it is a folder", "give --to the name of a file"),
        Ok(_) if !overwrite => refused("the file exists", "give another name, or --overwrite"),
        _ if to.file_name().is_none() || to.as_os_str().as_encoded_bytes().ends_with(b"/") => {
            refused("it does not end with the name of a file", "give --to the name of a file")
        }
        _ if !folder(to).is_dir() => {
            refused("its folder does not exist", "make the folder, or give another --to")
        }
        _ => Ok(()),
    }
}

fn folder(to: &Path) -> &Path {
    to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The files of the package, in the order of the bundle.
fn read_parts(from: &Path) -> Result<[Vec<u8>; PARTS]> {
    let mut parts: [Vec<u8>; PARTS] = Default::default();
    for ((name, max), part) in DEPLOYED.into_iter().zip(&mut parts) {
        let path = from.join(name);
        *part = read_at_most(&path, max).map_err(|error| {
            let what = format!("cannot read {}", path.display());
            RecipeError::failure(
                what,
                error.to_string(),
                "give --from with the folder that export has written",
            )
        })?;
    }
    Ok(parts)
}

/// Writes all beside `to`, and gives it that name when it is complete. Returns its size.
fn publish(
    own: impl Read,
    own_bytes: u64,
    parts: &[Vec<u8>; PARTS],
    to: &Path,
    overwrite: bool,
) -> io::Result<u64> {
    let folder = folder(to);
    let file = NamedTempFile::new_in(folder)?;
    let mut out = BufWriter::new(file.as_file());
    let mut own = own;
    if io::copy(&mut own, &mut out)? != own_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "this program's file became shorter"));
    }
    out.write_all(&start_mark())?;
    parts.iter().try_for_each(|part| out.write_all(part))?;
    let lengths = std::array::from_fn(|index| parts[index].len() as u64);
    out.write_all(&Layout::new(own_bytes, lengths, &parts[PARTS - 1]).trailer())?;
    out.flush()?;
    drop(out);
    file.as_file().set_permissions(Permissions::from_mode(0o755))?;
    file.as_file().sync_all()?;
    let bytes = file.as_file().metadata()?.len();
    match overwrite {
        true => file.persist(to),
        false => file.persist_noclobber(to),
    }
    .map_err(|error| error.error)?;
    // The name lasts once the folder is on the disk too; where folders cannot be synchronised, the system does it.
    let _ = open(folder).map(|folder| folder.sync_all());
    Ok(bytes)
}
