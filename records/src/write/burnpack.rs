use std::collections::BTreeMap;

use burn::store::burn_pack::{
    FORMAT_VERSION, HEADER_SIZE, Header, MAGIC_NUMBER, MAX_METADATA_SIZE, MAX_TENSOR_COUNT, MAX_TENSOR_SIZE,
    TENSOR_ALIGNMENT, Tensor, aligned_data_section_start,
};
use burn::tensor::DType;
use serde::Serialize;

use super::{Entry, Plan, refuse_duplicates, within};
use crate::error::Result;
use crate::format::Format;
use crate::save_dtype::SaveDType;

const FORMAT: &str = Format::Burnpack.name();

/// The metadata of a burnpack file, as its reader expects it. Source: burn-pack `base.rs`.
#[derive(Serialize)]
struct Metadata<'a> {
    tensors: BTreeMap<&'a str, Descriptor>,
    metadata: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Descriptor {
    dtype: DType,
    shape: Vec<u64>,
    /// First byte and the one behind the last, from the start of the data section.
    data_offsets: (u64, u64),
    #[serde(skip_serializing_if = "Option::is_none")]
    param_id: Option<u64>,
}

/// Lays out a burnpack file as burn-pack's own writer does: that one can neither compress nor round, and copies what it
/// cannot borrow.
pub(super) fn plan(
    tensors: Vec<Tensor>,
    stored: SaveDType,
    metadata: &BTreeMap<String, String>,
) -> Result<Plan> {
    refuse_duplicates(&tensors)?;
    let mut entries: Vec<Entry> = tensors
        .into_iter()
        .map(|tensor| {
            let stored = stored.of(tensor.dtype, tensor.shape.len());
            Entry::new(tensor, stored)
        })
        .collect();
    check_limits(&entries)?;
    let mut end = 0;
    for entry in &mut entries {
        entry.start = u64::next_multiple_of(end, TENSOR_ALIGNMENT);
        end = entry.start + entry.stored_bytes();
    }
    let encoded = encode(&entries, metadata)?;
    let data_start = aligned_data_section_start(encoded.len());
    let mut header = Vec::with_capacity(data_start);
    let metadata_size = encoded.len() as u32;
    header.extend(Header { magic: MAGIC_NUMBER, version: FORMAT_VERSION, metadata_size }.into_bytes());
    header.extend(encoded);
    header.resize(data_start, 0);
    entries.iter_mut().for_each(|entry| entry.start += data_start as u64);
    Ok(Plan { header, entries, bytes: data_start as u64 + end })
}

fn encode(entries: &[Entry], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let descriptor = |entry: &Entry| Descriptor {
        dtype: entry.stored,
        shape: entry.tensor.shape.iter().map(|&size| size as u64).collect(),
        data_offsets: (entry.start, entry.start + entry.stored_bytes()),
        param_id: entry.tensor.param_id,
    };
    let tensors = entries.iter().map(|entry| (entry.tensor.name.as_str(), descriptor(entry))).collect();
    let mut encoded = Vec::with_capacity(HEADER_SIZE + entries.len() * 128);
    ciborium::into_writer(&Metadata { tensors, metadata }, &mut encoded)
        .expect("a vector takes whatever plain data encode to");
    within("the metadata of the file", encoded.len() as u64, MAX_METADATA_SIZE.into(), FORMAT)?;
    Ok(encoded)
}

/// A file that its own reader refuses is worth nothing.
fn check_limits(entries: &[Entry]) -> Result<()> {
    within("the number of tensors", entries.len() as u64, MAX_TENSOR_COUNT as u64, FORMAT)?;
    for entry in entries {
        within(&entry.tensor.name, entry.stored_bytes(), MAX_TENSOR_SIZE as u64, FORMAT)?;
    }
    Ok(())
}
