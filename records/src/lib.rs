//! Weights and checkpoints for [Burn](https://burn.dev): in from PyTorch, safetensors and burnpack, out again, and
//! training states that survive a crash.

mod atomic;
mod compression;
mod error;
mod manifest;
mod model;
mod save;
mod stored_type;
mod write;

pub use compression::Zstd;
pub use error::{Error, Result};
pub use manifest::{Fault, Manifest, ManifestFile, ManifestTensor, Verification};
pub use model::{Architecture, save_model};
pub use save::{Names, SaveFormat, SaveOptions, SaveReport, save, save_tensors, snapshot};
pub use stored_type::StoredType;
