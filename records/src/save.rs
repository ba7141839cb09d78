use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::burn_pack::Tensor;

use crate::atomic;
use crate::compression::Zstd;
use crate::error::{Error, Result};
use crate::model::{ARCHITECTURE_KEY, Architecture, CONFIG_KEY};
use crate::names::Names;
use crate::save_dtype::SaveDType;
use crate::write::{self, collect};

/// The layout of a saved file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveFormat {
    /// Burn's own format (`.bpk`), which also keeps the identity of each parameter: what an optimizer's state needs.
    #[default]
    Burnpack,
    /// Hugging Face's format (`.safetensors`), which Python reads without Burn.
    Safetensors,
}

impl SaveFormat {
    /// The name for people: `burnpack` or `safetensors`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Burnpack => "burnpack",
            Self::Safetensors => "safetensors",
        }
    }
}

/// How to save.
///
/// ```
/// use burn_nccl_records::{Names, SaveFormat, SaveOptions, SaveDType};
///
/// let for_torchvision = SaveOptions::default()
///     .with_format(SaveFormat::Safetensors)
///     .with_names(Names::Torch)
///     .with_dtype(SaveDType::F16);
/// assert!(for_torchvision.durable);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveOptions {
    /// The layout of the file.
    pub format: SaveFormat,
    /// Whose names the tensors get; [`Names::Torch`] needs [`SaveFormat::Safetensors`].
    pub names: Names,
    /// The float type of what has two dimensions or more.
    pub dtype: SaveDType,
    /// Compresses the whole file as one zstd stream, which only this crate's loader undoes by itself.
    pub compression: Option<Zstd>,
    /// Splits a safetensors file into shards of at most this many bytes of tensors, in Hugging Face's layout: the path is
    /// then a folder, which gets the shards and `model.safetensors.index.json`. A larger tensor has a shard of its own.
    pub max_shard_bytes: Option<u64>,
    /// Waits until the file is on the disk, so that it also survives a loss of power. On by default; what it costs is the
    /// disk's time for so many bytes, whereas without it a save returns once the system has them.
    pub durable: bool,
    /// Replaces what is at the path, on by default. Otherwise an existing file is an error.
    pub overwrite: bool,
    /// Text to keep in the file, by key. Keys that begin with `burn-nccl.` are this crate's.
    pub metadata: BTreeMap<String, String>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            format: SaveFormat::default(),
            names: Names::default(),
            dtype: SaveDType::default(),
            compression: None,
            max_shard_bytes: None,
            durable: true,
            overwrite: true,
            metadata: BTreeMap::new(),
        }
    }
}

impl SaveOptions {
    /// Sets [`format`](Self::format).
    pub fn with_format(mut self, format: SaveFormat) -> Self {
        self.format = format;
        self
    }

    /// Sets [`names`](Self::names).
    pub fn with_names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Sets [`dtype`](Self::dtype).
    pub fn with_dtype(mut self, dtype: SaveDType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets [`compression`](Self::compression).
    pub fn with_compression(mut self, compression: Zstd) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Sets [`max_shard_bytes`](Self::max_shard_bytes).
    pub fn with_max_shard_bytes(mut self, bytes: u64) -> Self {
        self.max_shard_bytes = Some(bytes);
        self
    }

    /// Sets [`durable`](Self::durable).
    pub fn with_durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets [`overwrite`](Self::overwrite).
    pub fn with_overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Adds one entry to [`metadata`](Self::metadata).
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Describes in the file the model that `config` builds, as [`save_model`](crate::save_model) does: for tensors of
    /// that model that are saved with [`save_tensors`].
    pub fn with_architecture<A: Architecture>(self, config: &A) -> Self {
        let json = serde_json::to_string(config).expect("a config is plain data with text for keys");
        self.with_metadata(ARCHITECTURE_KEY, A::NAME).with_metadata(CONFIG_KEY, json)
    }

    /// Refuses what cannot be had together.
    fn check(&self) -> Result<()> {
        let refuse = |why| Err(Error::SaveOptions { why });
        if self.names == Names::Torch && self.format != SaveFormat::Safetensors {
            return refuse(
                "PyTorch's names need the safetensors format, since nothing but Burn reads burnpack",
            );
        }
        if self.max_shard_bytes.is_some() && self.format != SaveFormat::Safetensors {
            return refuse("shards need the safetensors format, since a burnpack file has no index");
        }
        if self.max_shard_bytes == Some(0) {
            return refuse("a shard of 0 bytes holds nothing");
        }
        self.compression.map_or(Ok(()), Zstd::check)
    }
}

/// What a save wrote.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SaveReport {
    /// The files, in the order of their names.
    pub files: Vec<PathBuf>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// The largest difference between a value and what is stored for it: 0 unless [`SaveOptions::dtype`] rounds.
    pub largest_error: f64,
}

/// Saves a module's parameters, and its running statistics with what the last forward pass added to them (Burn itself
/// adds that with the next pass).
///
/// The file appears under `path` in one step once it is whole: a crash, a full disk or an error leaves what was there, and
/// two writers of one path both write a whole file, of which the last to end stays. A link at `path` is replaced, not
/// followed; the permissions of a replaced file are kept. On `flex` the parameters are written from where they lie, and
/// on other devices one is in host memory at a time.
///
/// # Errors
///
/// [`Error::SaveOptions`], [`Error::CompressionLevel`], [`Error::Exists`], [`Error::NotAFile`], [`Error::DuplicateTensor`],
/// [`Error::Unstorable`] and [`Error::Limit`] before anything is written; [`Error::Overflow`], [`Error::Tensor`] and
/// [`Error::File`] with nothing changed at `path`.
pub fn save<M: Module>(module: &M, path: impl AsRef<Path>, options: &SaveOptions) -> Result<SaveReport> {
    options.check()?;
    save_checked(collect::collect(&module.valid(), options.names), path.as_ref(), options)
}

/// Saves tensors under the names they have; otherwise as [`save`].
///
/// [`SaveOptions::names`] says whose names those are, and renames nothing. A [deferred](Tensor::deferred) tensor is read
/// when its turn comes and then dropped.
///
/// # Errors
///
/// As [`save`].
pub fn save_tensors(
    tensors: Vec<Tensor>,
    path: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<SaveReport> {
    options.check()?;
    save_checked(tensors, path.as_ref(), options)
}

/// The parameters and running statistics of a module as they are now, under Burn's names, for [`save_tensors`]: how to
/// save the weights of a training while it goes on.
///
/// Shares their storage and copies nothing: Burn writes an update of what is also held here to new memory.
///
/// ```
/// # #[cfg(feature = "flex")]
/// # fn main() -> Result<(), burn_nccl_records::Error> {
/// use burn::{nn::LinearConfig, tensor::Device};
/// use burn_nccl_records::{SaveOptions, save_tensors, snapshot};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("weights.bpk");
/// let model = LinearConfig::new(4, 2).init(&Device::flex().autodiff());
/// let weights = snapshot(&model);
/// let saving = std::thread::spawn(move || save_tensors(weights, path, &SaveOptions::default()));
/// // ... more steps of training ...
/// let report = saving.join().expect("saving does not panic")?;
/// assert_eq!(report.tensors, 2);
/// # Ok(()) }
/// # #[cfg(not(feature = "flex"))]
/// # fn main() {}
/// ```
pub fn snapshot<M: Module>(module: &M) -> Vec<Tensor> {
    collect::collect(&module.valid(), Names::Burn)
}

fn save_checked(tensors: Vec<Tensor>, path: &Path, options: &SaveOptions) -> Result<SaveReport> {
    if let Some(max_shard_bytes) = options.max_shard_bytes {
        return write::shards::save(tensors, path, max_shard_bytes, options);
    }
    atomic::check_destination(path, options.overwrite)?;
    let count = tensors.len();
    let plan = write::plan(tensors, options)?;
    let written = write::write_file(plan, path, options)?;
    written.scratch.publish(options.durable, options.overwrite)?;
    Ok(SaveReport {
        files: vec![path.to_path_buf()],
        bytes: written.bytes,
        tensors: count,
        largest_error: written.largest_error,
    })
}
