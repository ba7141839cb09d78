//! Weights and checkpoints for [Burn](https://burn.dev): in from PyTorch, safetensors and burnpack, out again, and
//! training states that survive a crash.

#[cfg(target_endian = "big")]
compile_error!("every format read here is little-endian, and tensors are mapped without conversion");

mod cast;
mod error;
mod format;
mod load;
mod names;
mod plan;
mod report;
mod slots;
mod source;

pub use error::{Error, Result};
pub use format::Format;
pub use load::{LoadOptions, StoredDType, load, load_source};
pub use names::NameStyle;
pub use report::{LoadReport, Misshapen, Missing, Mistyped};
pub use source::{OpenOptions, Source, StoredTensor};
