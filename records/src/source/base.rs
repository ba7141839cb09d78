use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::folder::{Located, locate};
use super::{Contents, OpenOptions, StoredTensor, burnpack, pytorch, safetensors, sharded};
use crate::model::{ARCHITECTURE_KEY, CONFIG_KEY};
use crate::names::{Hint, sure_wrapper_prefix};
use crate::{Architecture, Error, Format, Names, Result};

/// The most tensors of one file, as in burnpack: what a model needs is far less, and lists stay small in memory.
pub(crate) const MAX_TENSORS: usize = 100_000;

/// An opened file, or folder of shards: its tensors are listed and none is read.
///
/// Safetensors and burnpack files are mapped into memory, so that what is never read costs nothing and several processes
/// share what is. As with `safetensors.torch.load_file` and `torch.load(mmap=True)`, such a file must not be written to
/// in place while it or a tensor from it is in use: values would change, and a truncated file ends the process with a
/// bus error. To replace one, rename another over it.
#[derive(Debug)]
pub struct Source {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) compressed: bool,
    pub(super) metadata: BTreeMap<String, String>,
    /// Sorted by name.
    pub(super) tensors: Vec<StoredTensor>,
    pub(super) bytes: u64,
    pub(super) files: Vec<PathBuf>,
}

impl Source {
    /// Opens weights of any [`Format`], told by content; a whole file may be compressed with zstd.
    ///
    /// # Errors
    ///
    /// [`Error::File`](crate::Error::File), [`Error::UnknownFormat`](crate::Error::UnknownFormat); for a file whose
    /// claims do not hold, [`Error::Corrupt`](crate::Error::Corrupt), [`Error::TooLarge`](crate::Error::TooLarge) or
    /// [`Error::Shards`](crate::Error::Shards); [`Error::UnsupportedType`](crate::Error::UnsupportedType); for a PyTorch
    /// file with several dictionaries of tensors, [`Error::Key`](crate::Error::Key), and for one that is no dictionary,
    /// [`Error::NotStateDict`](crate::Error::NotStateDict).
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        match locate(path.as_ref())? {
            Located::File(file) => Self::open_file(&file, options),
            Located::Index(index) => sharded::open(&index, options),
            Located::Checkpoint(file) => {
                let source = Self::open_file(&file, options)?;
                Ok(Self { path: path.as_ref().into(), format: Format::Checkpoint, ..source })
            }
        }
    }

    fn open_file(path: &Path, options: &OpenOptions) -> Result<Self> {
        match Format::of_file(path)? {
            (Format::ShardedSafetensors, _) => sharded::open(path, options),
            (Format::Pytorch, compressed) => pytorch::open(path, compressed, options),
            (format, compressed) => Self::open_contents(path, format, compressed, options),
        }
    }

    fn open_contents(path: &Path, format: Format, compressed: bool, options: &OpenOptions) -> Result<Self> {
        let contents = Contents::open(path, compressed, options)?;
        let (metadata, tensors) = match format {
            Format::Burnpack => burnpack::read(&contents)?,
            _ => safetensors::read(&contents)?,
        };
        Ok(Self {
            path: path.into(),
            format,
            compressed,
            metadata,
            tensors,
            bytes: contents.file_bytes,
            files: vec![path.into()],
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the file, or a shard, is compressed with zstd.
    pub fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The text entries that the format keeps beside the tensors; of a PyTorch file, the `key` that was taken.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whose names its tensors have, as the file says, or else its format. [`load`](crate::load()) knows the model as
    /// well, and compares where nothing says so: a safetensors file that Python wrote does not, and is taken for PyTorch's
    /// here.
    pub fn names(&self) -> Names {
        Hint::new(self.format, &self.metadata).names()
    }

    /// What wrappers of PyTorch have put before every name, empty where one lacks it: `module.` by
    /// `DistributedDataParallel`, `_orig_mod.` by `torch.compile`, or several.
    ///
    /// [`load`](crate::load()) also removes Lightning's `model.`, which only the model tells from the name of a field.
    pub fn wrapper_prefix(&self) -> String {
        sure_wrapper_prefix(&self.tensors.iter().map(StoredTensor::name).collect::<Vec<_>>())
    }

    /// The config of the model that the file describes, as [`save_model`](crate::save_model) and
    /// [`SaveOptions::with_architecture`](crate::SaveOptions::with_architecture) write it. It has passed
    /// [`Architecture::check`].
    ///
    /// # Errors
    ///
    /// [`Error::NoArchitecture`] where it describes none, [`Error::OtherArchitecture`] where it is another kind of model,
    /// [`Error::ModelConfig`] where no model can be built from it.
    pub fn architecture<A: Architecture>(&self) -> Result<A> {
        let entry =
            |key| self.metadata.get(key).ok_or_else(|| Error::NoArchitecture { path: self.path.clone() });
        let found = entry(ARCHITECTURE_KEY)?;
        if found != A::NAME {
            let (path, found) = (self.path.clone(), found.clone());
            return Err(Error::OtherArchitecture { path, expected: A::NAME, found });
        }
        let invalid = |why| Error::ModelConfig { path: self.path.clone(), why };
        let config: A =
            serde_json::from_str(entry(CONFIG_KEY)?).map_err(|error| invalid(error.to_string()))?;
        config.check().map_err(invalid)?;
        Ok(config)
    }

    /// Its tensors, sorted by name.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// The tensor named `name`.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        let at = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[at])
    }

    /// Size on disk, of all shards together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The files it consists of.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }
}
