//! Listing classes and image files.

use std::fs::{self, FileType};
use std::path::{Path, PathBuf};

use crate::DataError;

/// What a file must be called to count as an image; the content decides how it is decoded.
const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The class folders of `root`: its folders, sorted by name, without hidden ones.
pub(super) fn class_folders(root: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let mut classes = Vec::new();
    for Entry { name, path, kind } in entries(root)? {
        if kind.is_dir() || kind.is_symlink() && metadata(&path)?.is_dir() {
            refuse_loop(root, &path)?;
            classes.push((name, path));
        }
    }
    Ok(classes)
}

/// The image files under a class folder, in sorted order, folders within it included.
///
/// Links to files are followed. Links to folders are not: they can lead back up, and the walk would
/// not end or would put another class's images into this one.
pub(super) fn image_files(class: &Path) -> Result<Vec<PathBuf>, DataError> {
    let (mut images, mut ignored) = (Vec::new(), 0_usize);
    let mut folders = vec![class.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for Entry { path, kind, .. } in entries(&folder)? {
            if kind.is_dir() {
                folders.push(path);
            } else if !is_image_name(&path) {
                ignored += 1;
            // Opening a pipe would wait for a writer, so only regular files are taken.
            } else if kind.is_file() || kind.is_symlink() && metadata(&path)?.is_file() {
                images.push(path);
            }
        }
    }
    if ignored > 0 {
        log::debug!("{}: {ignored} entries that are not .jpg, .jpeg or .png are ignored", class.display());
    }
    images.sort();
    Ok(images)
}

/// Something in a folder; `kind` does not follow links.
struct Entry {
    name: String,
    path: PathBuf,
    kind: FileType,
}

/// The entries of a folder without the hidden ones, sorted by name: the order the operating system
/// gives differs between machines, and the ranks must agree.
fn entries(folder: &Path) -> Result<Vec<Entry>, DataError> {
    let read = |source| DataError::Read { path: folder.into(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let entry = entry.map_err(read)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            found.push(Entry { name, path: entry.path(), kind: entry.file_type().map_err(read)? });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// A class folder that links to a folder above itself would hold every other class.
fn refuse_loop(root: &Path, class: &Path) -> Result<(), DataError> {
    let real =
        |path: &Path| fs::canonicalize(path).map_err(|source| DataError::Read { path: path.into(), source });
    let target = real(class)?;
    if real(root)?.starts_with(&target) {
        return Err(DataError::LinkLoop { path: class.into(), target });
    }
    Ok(())
}

/// The metadata of what a path leads to, links followed.
fn metadata(path: &Path) -> Result<fs::Metadata, DataError> {
    fs::metadata(path).map_err(|source| DataError::Read { path: path.into(), source })
}

fn is_image_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}
