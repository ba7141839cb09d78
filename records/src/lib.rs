//! Weights and checkpoints for [Burn](https://burn.dev): in from PyTorch, safetensors and burnpack, out again, and
//! training states that survive a crash.

#[cfg(target_endian = "big")]
compile_error!("every format read here is little-endian, and tensors are mapped without conversion");

mod atomic;
mod cast;
pub mod checkpoint;
mod compression;
mod error;
mod format;
mod load;
mod manifest;
mod model;
mod names;
mod plan;
mod report;
mod save;
mod save_dtype;
mod sha256;
mod slots;
mod source;
mod write;

pub use atomic::write_file;
pub use compression::Zstd;
pub use error::{Error, Result};
pub use format::Format;
pub use load::{LoadDType, LoadOptions, load, load_source};
pub use manifest::{Fault, Manifest, ManifestFile, ManifestTensor, Verification};
pub use model::{Architecture, load_model, save_model};
pub use names::Names;
pub use report::{LoadReport, Misshapen, Missing, Mistyped};
pub use save::{SaveFormat, SaveOptions, SaveReport, save, save_tensors, snapshot};
pub use save_dtype::SaveDType;
pub use source::{OpenOptions, Source, StoredTensor};
