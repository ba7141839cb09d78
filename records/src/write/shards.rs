//! Hugging Face's layout of a large model: shards, and an index that says where each tensor is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use burn::store::burn_pack::Tensor;
use serde::{Deserialize, Serialize};

use super::{Plan, Written, plan, refuse_duplicates, within, write_file};
use crate::atomic;
use crate::error::{Error, Result};
use crate::format::{Format, MAX_HEADER_BYTES};
use crate::save::{SaveOptions, SaveReport};
use crate::source::MAX_TENSORS;

/// The file that makes a folder a sharded model.
const INDEX: &str = "model.safetensors.index.json";

const FORMAT: &str = Format::ShardedSafetensors.name();

#[derive(Serialize, Deserialize)]
struct Index {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct IndexMetadata {
    /// Bytes of all tensors.
    total_size: u64,
}

/// Saves shards to `folder`.
///
/// The index is what a reader opens, so it is replaced last and in one step; shards never take the name of one that the
/// old index lists, and the old ones go only when the new index is there.
pub(crate) fn save(
    tensors: Vec<Tensor>,
    folder: &Path,
    max_shard_bytes: u64,
    options: &SaveOptions,
) -> Result<SaveReport> {
    let index_path = folder.join(INDEX);
    refuse_duplicates(&tensors)?;
    within("the number of tensors", tensors.len() as u64, MAX_TENSORS as u64, FORMAT)?;
    if fs::metadata(folder).is_ok_and(|found| !found.is_dir()) {
        return Err(Error::NotAFolder { path: folder.into() });
    }
    atomic::check_destination(&index_path, options.overwrite)?;
    let old: BTreeSet<String> = listed(&index_path);
    let count = tensors.len();
    let shards = split(tensors, max_shard_bytes, |tensor| {
        let elements = tensor.shape.iter().product::<usize>() as u64;
        let stored = options.dtype.of(tensor.dtype, tensor.shape.len());
        if stored == tensor.dtype { tensor.byte_len() as u64 } else { elements * stored.size() as u64 }
    });
    let names = unused_names(shards.len(), &old);
    let (plans, index) = lay_out(shards, &names, options)?;
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let written = plans.into_iter().zip(&paths).map(|(plan, path)| write_file(plan, path, options));
    // All of them before the first gets its name: an error leaves no file behind.
    let written: Vec<Written> = written.collect::<Result<_>>()?;
    let mut report = SaveReport { files: paths, bytes: 0, tensors: count, largest_error: 0.0 };
    for shard in written {
        report.bytes += shard.bytes;
        report.largest_error = report.largest_error.max(shard.largest_error);
        shard.scratch.publish(options.durable, true)?;
    }
    report.bytes += index.len() as u64;
    atomic::write_file(&index_path, &index, options.durable, options.overwrite)?;
    report.files.push(index_path);
    remove_old(folder, &old, &names);
    Ok(report)
}

/// A plan for each shard, and the index as JSON.
fn lay_out(
    shards: Vec<Vec<Tensor>>,
    names: &[String],
    options: &SaveOptions,
) -> Result<(Vec<Plan>, Vec<u8>)> {
    let mut index = Index { metadata: IndexMetadata { total_size: 0 }, weight_map: BTreeMap::new() };
    let mut plans = Vec::with_capacity(shards.len());
    for (shard, name) in shards.into_iter().zip(names) {
        index.weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
        let plan = plan(shard, options)?;
        index.metadata.total_size += plan.entries.iter().map(|entry| entry.stored_bytes()).sum::<u64>();
        plans.push(plan);
    }
    let index = serde_json::to_vec_pretty(&index).expect("strings and numbers are JSON");
    within("the index", index.len() as u64, MAX_HEADER_BYTES, FORMAT)?;
    Ok((plans, index))
}

/// Fills one shard after the other, in the order of names.
fn split(mut tensors: Vec<Tensor>, max_bytes: u64, bytes: impl Fn(&Tensor) -> u64) -> Vec<Vec<Tensor>> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut shards = vec![Vec::new()];
    let mut filled = 0;
    for tensor in tensors {
        let size = bytes(&tensor);
        let shard = shards.last_mut().expect("there is one from the start");
        if shard.is_empty() || filled + size <= max_bytes {
            filled = if shard.is_empty() { size } else { filled + size };
            shard.push(tensor);
        } else {
            filled = size;
            shards.push(vec![tensor]);
        }
    }
    shards
}

/// `model-00001-of-00003.safetensors` and so on; with a generation behind `model` where an old index uses those names.
fn unused_names(count: usize, old: &BTreeSet<String>) -> Vec<String> {
    let names = |generation: Option<u64>| -> Vec<String> {
        let stem = generation.map_or("model".into(), |generation| format!("model.{generation}"));
        (1..=count).map(|shard| format!("{stem}-{shard:05}-of-{count:05}.safetensors")).collect()
    };
    std::iter::once(None)
        .chain((2..).map(Some))
        .map(names)
        .find(|names| names.iter().all(|name| !old.contains(name)))
        .expect("an index lists finitely many names")
}

/// The files that the index of an earlier save lists; none where it cannot be read, for then nothing of it is removed.
fn listed(index: &Path) -> BTreeSet<String> {
    let readable = fs::metadata(index).is_ok_and(|found| found.is_file() && found.len() <= MAX_HEADER_BYTES);
    let bytes = if readable { fs::read(index).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&bytes)
        .map(|index: Index| index.weight_map.into_values().collect())
        .unwrap_or_default()
}

/// Removes the shards of the model that was replaced. An index comes from anywhere, so only names of shards count.
fn remove_old(folder: &Path, old: &BTreeSet<String>, new: &[String]) {
    let is_shard = |name: &&String| {
        name.starts_with("model") && name.ends_with(".safetensors") && !name.contains(['/', '\\'])
    };
    for name in old.iter().filter(is_shard).filter(|name| !new.contains(name)) {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                log::warn!("the replaced shard {name} stays in {}: {error}", folder.display());
            }
            _ => {}
        }
    }
}
