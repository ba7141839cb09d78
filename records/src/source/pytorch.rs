//! PyTorch's files, through `pytorch-reader`, which interprets the pickle and runs nothing of it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{BoolStore, DType};
use pytorch_reader::{DType as TorchType, PickleValue, PytorchError, PytorchReader};

use super::contents::decompress;
use super::{MAX_TENSORS, OpenOptions, Payload, Source, StoredTensor};
use crate::{Error, Format, Result};

pub(super) fn open(path: &Path, compressed: bool, options: &OpenOptions) -> Result<Source> {
    let bytes = fs::metadata(path).map_err(Error::file("read", path))?.len();
    let unpacked = compressed.then(|| Unpacked::new(path, options)).transpose()?;
    let file = unpacked.as_ref().map_or(path, |unpacked| unpacked.0.as_path());
    let root = PytorchReader::read_pickle_data(file, None).map_err(|error| refused(path, error))?;
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

/// Keys that hold weights wherever they are found.
const SURE_KEYS: [&str; 2] = ["state_dict", "model_state_dict"];

/// Keys that hold weights in a training checkpoint, but may as well name a part of a model that was saved whole.
const LIKELY_KEYS: [&str; 6] = ["model", "module", "net", "network", "weights", "params"];

/// The key of the dictionary to take, none for the root; or why it cannot be told, and the keys to choose from.
fn select(root: &PickleValue, key: Option<&str>) -> Result<Option<String>, (String, Vec<String>)> {
    let PickleValue::Dict(dict) = root else { return Ok(None) };
    let mut dictionaries: Vec<String> = dict
        .iter()
        .filter(|(_, value)| is_dict(value) && holds_tensor(value))
        .map(|(key, _)| key.clone())
        .collect();
    dictionaries.sort_unstable();
    if let Some(key) = key {
        let found = key.split('.').try_fold(root, |value, part| match value {
            PickleValue::Dict(dict) => dict.get(part),
            _ => None,
        });
        return match found.is_some_and(|value| is_dict(value) && holds_tensor(value)) {
            true => Ok(Some(key.into())),
            false => Err((format!("has no dictionary of tensors under the key `{key}`"), dictionaries)),
        };
    }
    let find = |keys: &[&str]| {
        keys.iter().find(|key| dictionaries.iter().any(|found| found == *key)).map(|key| key.to_string())
    };
    if let Some(key) = find(&SURE_KEYS) {
        return Ok(Some(key));
    }
    // A model that was saved whole reads as dictionaries of nothing but tensors; a training checkpoint holds numbers too.
    let only_tensors = dict.iter().all(|(key, value)| key == "_metadata" || is_tensor_tree(value));
    if only_tensors && dict.values().any(holds_tensor) {
        return Ok(None);
    }
    if let Some(key) = find(&LIKELY_KEYS) {
        return Ok(Some(key));
    }
    if dict.values().any(is_tensor) {
        return Ok(None);
    }
    match dictionaries.iter().filter(|key| !key.contains("optim")).collect::<Vec<_>>()[..] {
        [only] => Ok(Some(only.clone())),
        [] => Err(("holds no tensors".into(), dictionaries)),
        _ => Err(("holds several dictionaries of tensors".into(), dictionaries)),
    }
}

fn is_dict(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Dict(_))
}

fn is_tensor(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Unsupported(kind) if kind == "torch.Tensor")
}

fn holds_tensor(value: &PickleValue) -> bool {
    match value {
        PickleValue::Dict(dict) => dict.values().any(holds_tensor),
        PickleValue::List(list) => list.iter().any(holds_tensor),
        value => is_tensor(value),
    }
}

fn is_tensor_tree(value: &PickleValue) -> bool {
    match value {
        PickleValue::Dict(dict) => dict.values().all(is_tensor_tree),
        value => is_tensor(value),
    }
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

fn refused(path: &Path, error: PytorchError) -> Error {
    match error {
        PytorchError::Io(error) if error.raw_os_error().is_some() => Error::file("read", path)(error),
        error => {
            let mut reason = error.to_string();
            if reason.contains("dictionary") {
                reason += " (`torch.save(model.state_dict(), path)` writes one)";
            }
            Error::Corrupt { path: path.into(), format: Format::Pytorch.name(), reason }
        }
    }
}

/// A decompressed copy in the folder for temporary files, which is removed again: the reader wants a file.
struct Unpacked(PathBuf);

impl Unpacked {
    fn new(path: &Path, options: &OpenOptions) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let to = std::env::temp_dir().join(format!("burn-nccl-{}-{count}.pth", std::process::id()));
        let mut file = create_private(&to).map_err(Error::file("create", &to))?;
        let unpacked = Self(to);
        decompress(path, options, &mut file)?;
        Ok(unpacked)
    }
}

/// A new file that nobody else can read, or have put a link in place of.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files harms nobody.
        let _ = fs::remove_file(&self.0);
    }
}
