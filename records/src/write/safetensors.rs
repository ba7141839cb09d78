use std::collections::BTreeMap;

use burn::store::bridge;
use burn::store::burn_pack::Tensor;
use burn::tensor::{BoolStore, DType};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::{Entry, Plan, refuse_duplicates, within};
use crate::error::{Error, Result};
use crate::format::{Format, MAX_HEADER_BYTES};
use crate::save_dtype::SaveDType;
use crate::source::MAX_TENSORS;

const FORMAT: &str = Format::Safetensors.name();

/// Where the data start: a multiple of this, so that every tensor can be used where it is mapped. The format allows
/// spaces behind the header.
const ALIGNMENT: usize = 64;

/// The key of the text in the header, which no tensor may have.
const METADATA: &str = "__metadata__";

/// Lays out a safetensors file: wide types first, which aligns each tensor to its own type, then by name.
pub(super) fn plan(
    tensors: Vec<Tensor>,
    stored: SaveDType,
    metadata: &BTreeMap<String, String>,
) -> Result<Plan> {
    refuse_duplicates(&tensors)?;
    within("the number of tensors", tensors.len() as u64, MAX_TENSORS as u64, FORMAT)?;
    let mut entries = tensors.into_iter().map(|tensor| entry(tensor, stored)).collect::<Result<Vec<_>>>()?;
    entries.sort_by(|(a, a_type), (b, b_type)| {
        b_type.cmp(a_type).then_with(|| a.tensor.name.cmp(&b.tensor.name))
    });
    let mut end = 0;
    let mut header = Map::new();
    header.insert(METADATA.into(), json!(metadata));
    for (entry, dtype) in &mut entries {
        entry.start = end;
        end += entry.stored_bytes();
        let description: Value =
            json!({ "dtype": dtype, "shape": &entry.tensor.shape[..], "data_offsets": [entry.start, end] });
        header.insert(entry.tensor.name.clone(), description);
    }
    let header = encode(&header)?;
    let data_start = header.len() as u64;
    let entries = entries.into_iter().map(|(entry, _)| Entry { start: data_start + entry.start, ..entry });
    Ok(Plan { header, entries: entries.collect(), bytes: data_start + end })
}

/// The length of the header, the header, and spaces up to the data.
fn encode(header: &Map<String, Value>) -> Result<Vec<u8>> {
    let mut encoded = vec![0; 8];
    serde_json::to_writer(&mut encoded, header).expect("a vector takes whatever JSON there is");
    let length = encoded.len().next_multiple_of(ALIGNMENT) - 8;
    within("the header", length as u64, MAX_HEADER_BYTES, FORMAT)?;
    encoded.resize(length + 8, b' ');
    encoded[..8].copy_from_slice(&(length as u64).to_le_bytes());
    Ok(encoded)
}

fn entry(tensor: Tensor, stored: SaveDType) -> Result<(Entry, Dtype)> {
    let tensor = with_byte_bools(tensor);
    let stored = stored.of(tensor.dtype, tensor.shape.len());
    match dtype(stored) {
        Some(dtype) if tensor.name != METADATA => Ok((Entry::new(tensor, stored), dtype)),
        _ => Err(Error::Unstorable { tensor: tensor.name, dtype: stored.name(), format: FORMAT }),
    }
}

/// Some devices keep a bool in four bytes, the format in one.
fn with_byte_bools(tensor: Tensor) -> Tensor {
    if tensor.dtype != DType::Bool(BoolStore::U32) {
        return tensor;
    }
    let (name, shape, native) = (tensor.name.clone(), tensor.shape.clone(), DType::Bool(BoolStore::Native));
    bridge::map_data(tensor, name, native, shape, move |data| data.convert_dtype(native))
}

fn dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool(BoolStore::Native | BoolStore::U8) => Dtype::BOOL,
        DType::Bool(BoolStore::U32) | DType::QFloat(_) => return None,
    })
}
