//! The files of an export, and how they are read.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use burn_nccl_records::{Manifest, ManifestFile};
use recipe_common::{RecipeError, Result};

use super::unusable;

pub(crate) const MODEL_FILE: &str = "model.onnx";
pub(crate) const WEIGHTS_FILE: &str = "model.safetensors";
pub(crate) const BURN_FILE: &str = "model.bpk";
pub(crate) const LABELS_FILE: &str = "labels.txt";
pub(crate) const PREPROCESS_FILE: &str = "preprocess.json";

/// All that a manifest describes.
pub(crate) const FILES: [&str; 5] = [MODEL_FILE, WEIGHTS_FILE, BURN_FILE, LABELS_FILE, PREPROCESS_FILE];

/// What a deployment reads, in the order of a bundle, and the most bytes of each: ONNX has no larger networks, and the
/// others are short texts, of which JSON takes up to twenty times its size in memory.
pub(crate) const DEPLOYED: [(&str, u64); 4] = [
    (MODEL_FILE, 1 << 31),
    (LABELS_FILE, 16 << 20),
    (PREPROCESS_FILE, 1 << 20),
    (Manifest::FILE_NAME, 16 << 20),
];

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// For what is larger, and for links and pipes: one leads out of the folder, and the other may never end.
pub(crate) fn read_at_most(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    let too_large = || io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {max} bytes"));
    let length = usize::try_from(found.len()).map_err(|_| too_large())?;
    if found.len() > max {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(length);
    // One byte more tells a file that grows.
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max { Err(too_large()) } else { Ok(bytes) }
}

/// Reads a described file once, so that what is used is what was hashed; none where it is not as described.
pub(super) fn read_described(folder: &Path, file: &ManifestFile) -> Option<Vec<u8>> {
    read_at_most(&folder.join(&file.name), file.bytes).ok().filter(|bytes| file.describes(bytes))
}

/// The manifest of an export, which describes the files of these `names`.
///
/// # Errors
/// Where there is none, or it is that of something else.
pub(crate) fn read_manifest(folder: &Path, names: &[&str]) -> Result<Manifest> {
    let manifest = Manifest::read(folder).map_err(|error| match fs::metadata(folder) {
        Ok(found) if found.is_dir() => {
            RecipeError::records(format!("cannot open {}", folder.display()), error)
        }
        Ok(_) => unusable(folder, "it is a file", GIVE_FOLDER),
        Err(error) => {
            RecipeError::failure(format!("cannot open {}", folder.display()), error.to_string(), GIVE_FOLDER)
        }
    })?;
    let missing: Vec<&str> =
        names.iter().copied().filter(|name| described(&manifest, name).is_none()).collect();
    if !missing.is_empty() {
        let cause = format!("its manifest does not describe {}", missing.join(", "));
        return Err(unusable(folder, cause, GIVE_FOLDER));
    }
    Ok(manifest)
}

const GIVE_FOLDER: &str = "give --from with the folder that export has written";

/// Compares the files with the manifest, those whose name `is_meant`.
///
/// # Errors
/// With the fault of each that differs.
pub(crate) fn check_files(folder: &Path, manifest: &Manifest, is_meant: impl Fn(&str) -> bool) -> Result<()> {
    let files = manifest.files.iter().filter(|file| is_meant(&file.name)).cloned().collect();
    let found = Manifest { files, ..Manifest::default() }.verify(folder);
    if found.is_intact() {
        return Ok(());
    }
    let faults = found.to_string().replace('\n', "; ");
    Err(unusable(folder, faults, "copy the folder again, or export the network again"))
}

pub(super) fn described<'a>(manifest: &'a Manifest, name: &str) -> Option<&'a ManifestFile> {
    manifest.files.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_neither_a_link_nor_a_pipe_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), b"12345").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_at_most(&path("file"), 5).unwrap(), b"12345");
        let kind = |name: &str, max| read_at_most(&path(name), max).unwrap_err().kind();
        assert_eq!(kind("file", 4), ErrorKind::FileTooLarge);
        assert_eq!([kind("link", 9), kind("pipe", 9)], [ErrorKind::InvalidInput; 2]);
        assert_eq!(kind("none", 9), ErrorKind::NotFound);
        // It tells no length and has one: as a file that grows.
        assert_eq!(kind("/proc/self/status", 9), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_described_file_is_read_if_it_is_what_was_described() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), b"abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let file = |bytes, sha256: &str| ManifestFile { name: "file".into(), bytes, sha256: sha256.into() };
        let read = |file: ManifestFile| read_described(folder.path(), &file);
        assert_eq!(read(file(3, sha256)).as_deref(), Some(b"abc".as_slice()));
        assert_eq!([read(file(2, sha256)), read(file(4, sha256))], [None, None]);
        assert_eq!(read(file(3, &sha256.replace('b', "c"))), None);
    }
}
