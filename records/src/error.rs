//! What can go wrong with a file of weights or a checkpoint.

use std::io;
use std::path::PathBuf;

use burn::tensor::DType;

use crate::LoadReport;
use crate::checkpoint::{Broken, CheckpointFailure};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a file of weights or of a checkpoint.
///
/// Each text says what failed, why, and what to do; `Debug` gives the same text.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file or folder.
    #[error("cannot {action} {}: {source}; check that it exists, is accessible and that the disk has space", path.display())]
    File {
        /// What was tried: `read`, `write`, `create`, `rename`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },

    /// A file is there already and may not be replaced.
    #[error("{} exists already; choose another name, or allow it to be overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },

    /// The path to write is not one of a file.
    #[error("cannot write {}: {why}; give the name of a file", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        why: &'static str,
    },

    /// The path to write shards to is a file.
    #[error("cannot write shards to {}: it is a file; give the name of a folder", path.display())]
    NotAFolder {
        /// The path as given.
        path: PathBuf,
    },

    /// Save options that exclude each other.
    #[error("{why}; change one of the save options")]
    SaveOptions {
        /// Which, and why.
        why: &'static str,
    },

    /// A level that zstd does not have.
    #[error("zstd has no level {level}; choose one from {lowest} to {highest}")]
    CompressionLevel {
        /// The level as given.
        level: i32,
        /// The fastest.
        lowest: i32,
        /// The smallest files.
        highest: i32,
    },

    /// Two tensors have one name.
    #[error("two tensors are called `{tensor}`, and a file can hold one of them; rename one")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },

    /// A format has no place for a tensor.
    #[error(
        "{format} cannot hold `{tensor}` of type {dtype}; save as burnpack, or convert or rename the tensor"
    )]
    Unstorable {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
        /// The format.
        format: &'static str,
    },

    /// Something exceeds what the readers of a format accept.
    #[error("{what} is {size}, and readers of {format} accept {limit} at most; save it in parts")]
    Limit {
        /// A tensor, or a part of the file.
        what: String,
        /// How large it is, in bytes or in number.
        size: u64,
        /// What is accepted.
        limit: u64,
        /// The format.
        format: &'static str,
    },

    /// A value has no room in the type it is to be stored in.
    #[error("`{tensor}` holds {value:e}, which {dtype} cannot; store it as bf16 or keep its type")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// The first such value.
        value: f64,
        /// The type to store.
        dtype: &'static str,
    },

    /// A tensor did not come back from its device.
    #[error("cannot read the tensor `{tensor}`: {source}; check the device it is on")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The reason.
        source: burn::store::burn_pack::Error,
    },

    /// A file holds weights but does not say of which model.
    #[error(
        "{} does not say what model it holds; load it into a model that you build, or save it with `save_model`",
        path.display()
    )]
    NoArchitecture {
        /// The file.
        path: PathBuf,
    },

    /// A file holds another kind of model.
    #[error("{} holds a model of the kind `{found}`, not `{expected}`; load it as that", path.display())]
    OtherArchitecture {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        expected: &'static str,
        /// What the file says.
        found: String,
    },

    /// The description of a model cannot be used.
    #[error("the model config in {} is not valid: {why}; the file is damaged or of another version", path.display())]
    ModelConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },

    /// A manifest cannot be used.
    #[error("the manifest {} is not valid: {why}; it is damaged or not one of ours", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },

    /// The file or folder holds none of the formats that [`Source`](crate::Source) reads.
    #[error("{} is no file of weights that can be read here: {found}; expected PyTorch (.pth), safetensors, burnpack (.bpk) or a checkpoint folder", path.display())]
    UnknownFormat {
        /// The file or folder.
        path: PathBuf,
        /// What it seems to be instead, and the way out where one is known.
        found: String,
    },
    /// The file is damaged, cut short or made to mislead; nothing was loaded from it.
    #[error("{} is not a sound {format} file: {reason}; fetch or save it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
        /// What is wrong, with the tensor or entry concerned.
        reason: String,
    },
    /// The file would take more memory than is allowed for one of its size.
    #[error("{} of {from} bytes expands to {bytes} bytes or more, where {limit} are allowed; if it is to be trusted, raise `OpenOptions::max_expanded_bytes`", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size on disk.
        from: u64,
        /// What it claims to hold, or what came out of it before the limit stopped it.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The system gives no room to decompress a file to.
    #[error("cannot reserve the {bytes} bytes of memory that {} may expand to: {source}; lower `OpenOptions::max_expanded_bytes` to what it does, or raise the process's limit", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// How many bytes were asked for: the size that the file says, or the limit where it says none.
        bytes: u64,
        /// The reason.
        source: io::Error,
    },
    /// A tensor has an element type that Burn lacks, or that loading does not support.
    #[error("tensor `{tensor}` of {} has the element type {dtype}, which cannot be loaded; convert it with the tool that wrote the file", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type's name in the file.
        dtype: String,
    },

    /// A PyTorch file is sound, but holds no dictionary of plain tensors: a TorchScript program, say.
    #[error("{} holds {found}, from which no weights can be read; save a dictionary of plain tensors, such as `model.state_dict()`, with `torch.save`", path.display())]
    NotStateDict {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },

    /// A PyTorch file has no dictionary of tensors under the key asked for, or several to choose from.
    #[error("{} {reason}; name one with `OpenOptions::key`, its dictionaries of tensors are {}", path.display(), list(available))]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with the key.
        reason: String,
        /// The keys that would do.
        available: Vec<String>,
    },
    /// An index of shards and the files beside it do not belong together, or a name leads out of the folder.
    #[error("index {} cannot be followed: {reason}; fetch the whole folder again", index.display())]
    Shards {
        /// The index.
        index: PathBuf,
        /// What is wrong, with the shard or tensor concerned.
        reason: String,
    },
    /// The tensors of the file do not fit the model; the model is unchanged.
    #[error("{} does not fit the model: {report}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Every difference, each with the nearest candidates.
        report: Box<LoadReport>,
    },
    /// Floating-point parameters cannot be loaded as this type.
    #[error(
        "parameters cannot be loaded as {dtype:?}, which is no floating-point type; use F64, F32, F16 or BF16"
    )]
    NotFloat {
        /// The type asked for.
        dtype: DType,
    },
    /// Rank 0 cannot use a folder for checkpoints; the same on every rank.
    #[error("cannot use {} for checkpoints: {failure}", folder.display())]
    CheckpointFolder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        failure: CheckpointFailure,
    },
    /// A checkpoint was not saved, and the older ones are intact; the same on every rank.
    #[error("the checkpoint of step {step} was not saved in {}: {failure}; older checkpoints are intact", folder.display())]
    CheckpointNotSaved {
        /// The step.
        step: u64,
        /// The folder.
        folder: PathBuf,
        /// Why.
        failure: CheckpointFailure,
    },
    /// Ranks are in different calls about checkpoints.
    #[error(
        "rank {rank} is in `{found}` of checkpoints and rank 0 in `{expected}`; make the same calls in the same order on \
         every rank"
    )]
    CheckpointCalls {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Its call.
        found: String,
        /// That of rank 0.
        expected: String,
    },
    /// Ranks see different checkpoints.
    #[error(
        "rank 0 found {} in {} and ranks {ranks:?} do not see it so; put checkpoints where every rank sees the same files, \
         or copy them there",
        newest.as_ref().map_or_else(|| "no checkpoint".into(), |newest| newest.display().to_string()),
        folder.display()
    )]
    CheckpointNotVisible {
        /// Where was looked.
        folder: PathBuf,
        /// What rank 0 found.
        newest: Option<PathBuf>,
        /// The ranks that see something else.
        ranks: Vec<usize>,
    },
    /// A folder holds no complete checkpoint.
    #[error("{} holds no complete checkpoint{}; start without resuming, or give another folder", folder.display(), reasons(broken))]
    NoCheckpoint {
        /// The folder.
        folder: PathBuf,
        /// Those that are not complete.
        broken: Vec<Broken>,
    },
    /// A checkpoint is not complete.
    #[error("the checkpoint {} cannot be used: {why}; take an older one", path.display())]
    CheckpointBroken {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The state of an optimizer fits neither the optimizer nor the model.
    #[error("the state of the optimizer in {} does not fit: {why}; make optimizer and model as in the run that saved it", path.display())]
    CheckpointOptimizer {
        /// The file.
        path: PathBuf,
        /// The first difference.
        why: String,
    },
    /// The group of ranks has failed.
    #[error(transparent)]
    Group(#[from] burn_nccl::Error),
}

/// What is wrong with each, behind a colon.
fn reasons(broken: &[Broken]) -> String {
    let of = |broken: &Broken| format!("{}: {}", broken.path.display(), broken.why);
    match broken {
        [] => String::new(),
        broken => format!(" ({})", broken.iter().map(of).collect::<Vec<_>>().join("; ")),
    }
}

/// `a`, `b` and `c`; or `none`.
fn list(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// The system's refusal of `path`, as a closure for `map_err`.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.into(), source }
    }
}
