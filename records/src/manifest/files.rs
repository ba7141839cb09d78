//! The files of a folder, of which nothing leads out.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Manifest, ManifestTensor};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::sha256;
use crate::source::{OpenOptions, Source, StoredTensor};

/// What is read of a file at a time.
const READ_BYTES: usize = 1 << 20;

/// Why a file of a folder was not opened.
pub(super) enum Refusal {
    Why(&'static str),
    System(io::Error),
}

impl Refusal {
    pub(super) fn into_error(self, folder: &Path, name: &str) -> Error {
        match self {
            Self::System(source) => Error::File { action: "read", path: folder.join(name), source },
            Self::Why(why) => {
                Error::Manifest { path: folder.join(Manifest::FILE_NAME), why: format!("`{name}` {why}") }
            }
        }
    }
}

/// Opens a file of `folder`, and follows no link on the way there: what is outside the folder stays unread.
pub(super) fn open(folder: &Path, name: &str) -> Result<File, Refusal> {
    let mut path = PathBuf::from(folder);
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        let kind = fs::symlink_metadata(&path).map_err(Refusal::System)?.file_type();
        match parts.peek() {
            _ if kind.is_symlink() => return Err(Refusal::Why("is a link or lies behind one")),
            Some(_) if !kind.is_dir() => return Err(Refusal::Why("lies in what is no folder")),
            // A pipe would keep its reader waiting for ever.
            None if !kind.is_file() => return Err(Refusal::Why("is not a file")),
            _ => {}
        }
    }
    File::open(&path).map_err(Refusal::System)
}

/// Bytes and SHA-256 of a file.
pub(super) fn digest(mut file: File) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((bytes, sha256::hex(hash)))
}

/// The tensors of a file, none where it holds no weights. An index of shards is described by its shards.
pub(super) fn tensors(folder: &Path, name: &str) -> Result<Vec<ManifestTensor>> {
    let path = folder.join(name);
    let source = match Format::of_file(&path) {
        Ok((Format::Burnpack | Format::Safetensors, _)) => Source::open(&path, &OpenOptions::default())?,
        // A zip archive of anything looks like PyTorch's, and not all of those hold weights.
        Ok((Format::Pytorch, _)) => match Source::open(&path, &OpenOptions::default()) {
            Ok(source) => source,
            Err(_) => return Ok(Vec::new()),
        },
        _ => return Ok(Vec::new()),
    };
    let describe = |tensor: &StoredTensor| ManifestTensor {
        file: name.into(),
        name: tensor.name().into(),
        shape: tensor.shape().to_vec(),
        dtype: tensor.dtype().name().into(),
    };
    Ok(source.tensors().iter().map(describe).collect())
}

/// Refuses names that are not those of distinct files in the folder.
pub(super) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        check_name(name)?;
        if !seen.insert(name) {
            return Err(format!("`{name}` appears twice"));
        }
    }
    Ok(())
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let mut parts = Path::new(name).components();
    let stays = parts.all(|part| matches!(part, Component::Normal(_)));
    // `a//b` and `a/./b` are other names of `a/b`; `\` is a separator on other systems.
    let plain = name.split('/').all(|part| !part.is_empty() && part != ".")
        && !name.contains(|c: char| c == '\\' || c.is_control());
    match (stays && plain, name == Manifest::FILE_NAME) {
        (true, false) => Ok(()),
        (true, true) => Err(format!("`{name}` cannot describe itself")),
        (false, _) => Err(format!("{name:?} is not the plain name of a file in its folder")),
    }
}
