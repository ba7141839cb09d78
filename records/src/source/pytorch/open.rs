use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{BoolStore, DType};
use pytorch_reader::{DType as TorchType, PickleError, PickleValue, PytorchError, PytorchReader};
use zip::ZipArchive;

use super::select::select;
use super::temporary::TemporaryCopy;
use crate::source::{MAX_TENSORS, Payload};
use crate::{Error, Format, OpenOptions, Result, Source, StoredTensor};

/// The largest pickle of an archive is its size on disk, where PyTorch compresses nothing, but at least and at most this: a
/// tensor takes some hundred bytes of it.
const MIN_PICKLE_LIMIT: u64 = 1 << 20;
const MAX_PICKLE_LIMIT: u64 = 16 << 20;

pub(in crate::source) fn open(path: &Path, compressed: bool, options: &OpenOptions) -> Result<Source> {
    let bytes = fs::metadata(path).map_err(Error::file("read", path))?.len();
    let copy = match compressed {
        true => Some(TemporaryCopy::decompressed(path, options)?),
        false => TemporaryCopy::repaired(path)?,
    };
    let file = copy.as_ref().map_or(path, |copy| copy.path());
    check_pickle(path, file, bytes)?;
    let root = PytorchReader::read_pickle_data(file, None).map_err(|error| refused(path, error))?;
    let PickleValue::Dict(root) = root else {
        return Err(Error::NotStateDict { path: path.into(), found: type_name(root) });
    };
    let key = select(&root, options.key.as_deref()).map_err(|(reason, available)| Error::Key {
        path: path.into(),
        reason,
        available,
    })?;
    // The reader keeps the file open and reads by offset, so a temporary one may vanish by its name now.
    let reader = PytorchReader::new(file).map_err(|error| refused(path, error))?;
    Ok(Source {
        path: path.into(),
        format: Format::Pytorch,
        compressed,
        tensors: list(reader.into_tensors(), key.as_deref(), path, bytes, options)?,
        metadata: key.map(|key| ("key".into(), key)).into_iter().collect(),
        bytes,
        files: vec![path.into()],
    })
}

/// Refuses a pickle that would expand into more memory than any checkpoint needs: each of its bytes can become an object
/// of some 85 bytes, and an archive can make a hundred kilobytes of it look like a hundred million.
fn check_pickle(path: &Path, file: &Path, from: u64) -> Result<()> {
    let file = File::open(file).map_err(Error::file("read", path))?;
    // What is no archive has its pickle as it is, and what is a damaged one is refused by the reader, which says why.
    let Ok(mut archive) = ZipArchive::new(file) else { return Ok(()) };
    let limit = from.clamp(MIN_PICKLE_LIMIT, MAX_PICKLE_LIMIT);
    for index in 0..archive.len() {
        let Ok(entry) = archive.by_index_raw(index) else { continue };
        if entry.name_raw().ends_with(b"data.pkl") && entry.size() > limit {
            return Err(Error::TooLarge { path: path.into(), from, bytes: entry.size(), limit });
        }
    }
    Ok(())
}

/// The tensors of the dictionary under `key`, by their names in it, sorted.
fn list(
    all: HashMap<String, pytorch_reader::Tensor>,
    key: Option<&str>,
    path: &Path,
    from: u64,
    options: &OpenOptions,
) -> Result<Vec<StoredTensor>> {
    let origin = Arc::new((path.to_path_buf(), Format::Pytorch.name()));
    let prefix = key.map(|key| format!("{key}.")).unwrap_or_default();
    let mut tensors: Vec<_> = all
        .into_iter()
        .filter_map(|(name, tensor)| {
            Some(StoredTensor {
                name: name.strip_prefix(&prefix)?.to_string(),
                dtype: element_type(tensor.dtype()),
                shape: tensor.shape().to_vec(),
                byte_len: tensor.byte_len() as u64,
                param_id: None,
                payload: Payload::Pytorch(Arc::new(tensor)),
                origin: origin.clone(),
            })
        })
        .collect();
    if tensors.len() > MAX_TENSORS {
        let reason = format!("it holds more than {MAX_TENSORS} tensors");
        return Err(Error::Corrupt { path: path.into(), format: Format::Pytorch.name(), reason });
    }
    let bytes = tensors.iter().map(|tensor| tensor.byte_len).fold(0, u64::saturating_add);
    let limit = options.limit(from);
    if bytes > limit {
        return Err(Error::TooLarge { path: path.into(), from, bytes, limit });
    }
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

fn element_type(dtype: TorchType) -> DType {
    match dtype {
        TorchType::F64 => DType::F64,
        TorchType::F32 => DType::F32,
        TorchType::F16 => DType::F16,
        TorchType::BF16 => DType::BF16,
        TorchType::I64 => DType::I64,
        TorchType::I32 => DType::I32,
        TorchType::I16 => DType::I16,
        TorchType::I8 => DType::I8,
        TorchType::U64 => DType::U64,
        TorchType::U32 => DType::U32,
        TorchType::U16 => DType::U16,
        TorchType::U8 => DType::U8,
        TorchType::Bool => DType::Bool(BoolStore::Native),
    }
}

/// What a file holds in place of a dictionary.
fn type_name(value: PickleValue) -> String {
    match value {
        PickleValue::List(_) => "a list".into(),
        PickleValue::Unsupported(name) => format!("a `{name}`"),
        _ => "a single value".into(),
    }
}

fn refused(path: &Path, error: PytorchError) -> Error {
    match error {
        PytorchError::Io(error) if error.raw_os_error().is_some() => Error::file("read", path)(error),
        PytorchError::Pickle(PickleError::UnsupportedType(name)) => {
            Error::NotStateDict { path: path.into(), found: format!("a `{name}` with tensors in it") }
        }
        error => {
            Error::Corrupt { path: path.into(), format: Format::Pytorch.name(), reason: error.to_string() }
        }
    }
}
