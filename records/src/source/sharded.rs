//! Safetensors in several files, with an index that says which tensor is in which: Hugging Face's layout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::safetensors::{self, Unique};
use super::{Contents, MAX_TENSORS, OpenOptions, Source};
use crate::format::MAX_HEADER_BYTES;
use crate::{Error, Format, Result};

#[derive(Deserialize)]
struct Index {
    /// From a tensor's name to the file beside the index that holds it.
    weight_map: Unique<String>,
}

pub(super) fn open(index: &Path, options: &OpenOptions) -> Result<Source> {
    let refuse = |reason: String| Error::Shards { index: index.into(), reason };
    let weight_map = read_index(index)?;
    let folder = match index.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let names: BTreeSet<&String> = weight_map.values().collect();
    let mut source = Source {
        path: index.into(),
        format: Format::ShardedSafetensors,
        compressed: false,
        metadata: BTreeMap::new(),
        tensors: Vec::with_capacity(weight_map.len()),
        bytes: 0,
        files: vec![index.into()],
    };
    for name in names {
        let path = shard_path(folder, name).map_err(refuse)?;
        let (format, compressed) = Format::of_file(&path)?;
        if format != Format::Safetensors {
            return Err(refuse(format!("shard `{name}` is {}, not safetensors", format.name())));
        }
        let contents = Contents::open(&path, compressed, options)?;
        let (metadata, tensors) = safetensors::read(&contents)?;
        if let Some(stray) = tensors.iter().find(|tensor| weight_map.get(&tensor.name) != Some(name)) {
            return Err(refuse(format!(
                "shard `{name}` holds `{}`, which the index does not have there",
                stray.name
            )));
        }
        source.compressed |= compressed;
        source.bytes += contents.file_bytes;
        source.metadata.extend(metadata);
        source.tensors.extend(tensors);
        source.files.push(path);
    }
    source.tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    // Each shard held only what the index gives to it and no name twice, so fewer tensors mean that one is lacking.
    match weight_map.iter().find(|(name, _)| source.tensor(name).is_none()) {
        Some((name, shard)) => Err(refuse(format!("`{name}` is not in its shard `{shard}`"))),
        None => Ok(source),
    }
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(Error::file("open", path))?;
    file.take(MAX_HEADER_BYTES + 1).read_to_end(&mut text).map_err(Error::file("read", path))?;
    let refuse = |reason: String| Error::Shards { index: path.into(), reason };
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(refuse(format!("it is larger than {MAX_HEADER_BYTES} bytes")));
    }
    let index: Index = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    match index.weight_map.0 {
        map if map.is_empty() => Err(refuse("its `weight_map` is empty".into())),
        map if map.len() > MAX_TENSORS => Err(refuse(format!("it lists more than {MAX_TENSORS} tensors"))),
        map => Ok(map),
    }
}

/// The file of a shard: a plain name in `folder`, and no link that leads elsewhere.
///
/// Links into the blobs of Hugging Face's cache, `<repository>/snapshots/<revision>` and `<repository>/blobs`, are
/// followed: every shard there is one.
fn shard_path(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) || name.contains('\\') {
        return Err(format!("shard `{name}` is no plain file name"));
    }
    let path = folder.join(name);
    let canonical = |path: &Path| path.canonicalize().map_err(|error| format!("shard `{name}`: {error}"));
    let (file, folder) = (canonical(&path)?, canonical(folder)?);
    let blobs = folder
        .parent()
        .filter(|parent| parent.ends_with("snapshots"))
        .map(|parent| parent.with_file_name("blobs"));
    let inside = file.parent() == Some(&folder) || (blobs.is_some() && file.parent() == blobs.as_deref());
    match inside && file.is_file() {
        true => Ok(path),
        false => Err(format!("shard `{name}` is a link out of the folder or no file")),
    }
}
