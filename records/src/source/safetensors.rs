//! Safetensors: the length of a JSON header, the header, and the tensors' bytes without gap or overlap.
//!
//! The header is read here rather than by the safetensors crate, which takes the last of two tensors of one name for
//! both; what it refuses is refused here too. Source: the format's description at
//! <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use burn::tensor::{AllocationProperty, BoolStore, Bytes, DType};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{Contents, MAX_TENSORS, Payload, StoredTensor};
use crate::format::MAX_HEADER_BYTES;
use crate::{Error, Format, Result};

pub(super) fn read(contents: &Contents) -> Result<(BTreeMap<String, String>, Vec<StoredTensor>)> {
    let corrupt = |reason: String| contents.corrupt(Format::Safetensors, reason);
    let (header, data_start) = header(&contents.bytes).map_err(corrupt)?;
    let Header { metadata, mut entries } =
        serde_json::from_slice(header).map_err(|error| corrupt(format!("its header: {error}")))?;
    check_layout(&mut entries, (contents.bytes.len() - data_start) as u64).map_err(corrupt)?;

    let origin = contents.origin(Format::Safetensors);
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, Info { dtype, shape, data_offsets: (start, end) }) in entries {
        let Some(dtype) = element_type(&dtype) else {
            return Err(Error::UnsupportedType { path: contents.path.clone(), tensor: name, dtype });
        };
        // In range: `check_layout` has compared the last end with the bytes that are there.
        let range = data_start + start as usize..data_start + end as usize;
        let payload =
            Payload::Shared(Bytes::from_shared(contents.bytes.slice(range), AllocationProperty::File));
        let shape = shape.into_iter().map(|extent| extent as usize).collect();
        let (byte_len, param_id, origin) = (end - start, None, origin.clone());
        tensors.push(StoredTensor { name, dtype, shape, byte_len, param_id, payload, origin });
    }
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok((metadata, tensors))
}

/// The JSON header, and where the data starts.
fn header(bytes: &[u8]) -> Result<(&[u8], usize), String> {
    let length = bytes.first_chunk().ok_or("it ends within the length of its header")?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header claims {length} bytes, above {MAX_HEADER_BYTES}"));
    }
    let end = 8 + length as usize;
    let header = bytes.get(8..end).ok_or_else(|| format!("it ends within its header of {length} bytes"))?;
    Ok((header, end))
}

/// Sorts the entries by place and checks that they fill `data_bytes` exactly, each as many bytes as its shape needs.
fn check_layout(entries: &mut [(String, Info)], data_bytes: u64) -> Result<(), String> {
    entries.sort_unstable_by_key(|(_, info)| info.data_offsets);
    let mut filled = 0;
    for (name, Info { dtype, shape, data_offsets: (start, end) }) in entries.iter() {
        if *start != filled || end < start {
            return Err(format!(
                "tensor `{name}` lies at {start}..{end}, where {filled} should follow: a gap or overlap"
            ));
        }
        let elements = shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
        let needed =
            element_type(dtype).map(|dtype| elements.and_then(|n| n.checked_mul(dtype.size() as u64)));
        if needed.is_some_and(|needed| needed != Some(end - start)) {
            return Err(format!("tensor `{name}` has {} bytes, not those of {dtype} {shape:?}", end - start));
        }
        filled = *end;
    }
    match filled == data_bytes {
        true => Ok(()),
        false => Err(format!(
            "its tensors end at byte {filled} of {data_bytes}: the file is cut short or has more"
        )),
    }
}

fn element_type(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U64" => DType::U64,
        "U32" => DType::U32,
        "U16" => DType::U16,
        "U8" => DType::U8,
        "BOOL" => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// What the header says of one tensor.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct Header {
    metadata: BTreeMap<String, String>,
    entries: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { metadata: BTreeMap::new(), entries: Vec::new() };
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{name}` is there twice")));
                    }
                    if name == "__metadata__" {
                        header.metadata = map.next_value::<Unique<String>>()?.0;
                    } else if header.entries.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
                    } else {
                        header.entries.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A JSON object that has no key twice; serde would keep the last, and another reader of the same file the first.
pub(super) struct Unique<T>(pub(super) BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("`{key}` is there twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
