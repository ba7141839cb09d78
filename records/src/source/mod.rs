//! Opened files of weights: what each format holds, as a list of tensors that are not read yet.
//!
//! One file per format; each checks everything the file claims before any of it is believed.

mod base;
mod burnpack;
mod contents;
mod folder;
mod heap;
mod options;
mod pytorch;
mod safetensors;
mod sharded;
mod tensor;

pub(crate) use base::MAX_TENSORS;
pub use base::Source;
pub(crate) use contents::{Contents, peek};
pub(crate) use folder::{Located, locate};
pub use options::OpenOptions;
pub(crate) use tensor::Payload;
pub use tensor::StoredTensor;
