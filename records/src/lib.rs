//! Weights and checkpoints for [Burn](https://burn.dev): in from PyTorch, safetensors and burnpack, out again, and
//! training states that survive a crash.
//!
//! # Three ways to save
//!
//! | | holds | written by | read by |
//! |---|---|---|---|
//! | [weights](#weights) | parameters and running statistics | [`save`] | [`load()`], into a model that the program builds |
//! | [model](#model) | the config that builds it as well | [`save_model`] | [`load_model`], which builds the model |
//! | [checkpoint](#checkpoint) | optimizer, step, place in the data, loss scale and history as well | [`Checkpointer`] | [`Checkpoint`] |
//!
//! The first two are one file, for use elsewhere: in burnpack or safetensors, with Burn's names or PyTorch's, in half
//! precision, compressed, in shards, as [`SaveOptions`] say. The third is a folder, for the training itself. Each appears
//! whole or not at all, and [`load()`] takes the weights out of any of them.
//!
//! ## Weights
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl_records::Error> {
//! use burn::{nn::LinearConfig, tensor::Device};
//! use burn_nccl_records::{LoadOptions, Names, SaveFormat, SaveOptions, load, save};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("classifier.safetensors");
//! let device = Device::flex();
//! let model = LinearConfig::new(4, 2).init(&device);
//! // PyTorch: `linear.load_state_dict(safetensors.torch.load_file("classifier.safetensors"))`
//! let options = SaveOptions::default().with_format(SaveFormat::Safetensors).with_names(Names::Torch);
//! save(&model, &path, &options)?;
//!
//! // Format and names are found out; a file of PyTorch's own (`.pth`) loads by the same line.
//! let (loaded, report) = load(&LinearConfig::new(4, 2).init(&device), &path, &LoadOptions::default())?;
//! assert_eq!((report.names, report.loaded.len()), (Names::Torch, 2));
//! # assert_eq!(loaded.weight.val().into_data(), model.weight.val().into_data());
//! # Ok(()) }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! ## Model
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl_records::Error> {
//! use burn::config::Config;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use burn_nccl_records::{Architecture, SaveOptions, load_model, save_model};
//!
//! #[derive(Config, Debug, PartialEq)]
//! struct ClassifierConfig {
//!     features: usize,
//!     classes: usize,
//! }
//!
//! impl Architecture for ClassifierConfig {
//!     const NAME: &'static str = "classifier";
//!     type Model = Linear;
//!
//!     fn init(&self, device: &Device) -> Linear {
//!         LinearConfig::new(self.features, self.classes).init(device)
//!     }
//! }
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("classifier.bpk");
//! let (config, device) = (ClassifierConfig::new(4, 2), Device::flex());
//! let model = config.init(&device);
//! save_model(&config, &model, &path, &SaveOptions::default())?;
//!
//! let (found, loaded) = load_model::<ClassifierConfig>(&path, &device)?;
//! assert_eq!(found, config);
//! # assert_eq!(loaded.weight.val().into_data(), model.weight.val().into_data());
//! # Ok(()) }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! ## Checkpoint
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl_records::Error> {
//! use burn::{nn::LinearConfig, optim::AdamConfig, tensor::Device};
//! use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, Checkpointer, TrainingState};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path().join("checkpoints");
//! let device = Device::flex().autodiff();
//! let (model, optimizer) = (LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
//! let mut checkpointer = Checkpointer::open(&folder, CheckpointConfig::default(), None)?;
//! // Returns at once; the files are written while the training goes on.
//! checkpointer.save(&model, &optimizer, TrainingState { step: 50, ..TrainingState::default() })?;
//! checkpointer.finish()?;
//!
//! let checkpoint = Checkpoint::open(&folder)?;
//! let model = checkpoint.load_model(&model)?;
//! let optimizer = checkpoint.load_optimizer(optimizer, &model)?;
//! assert_eq!(checkpoint.state().step, 50);
//! # let _ = optimizer;
//! # Ok(()) }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! The module [`checkpoint`] shows a training that resumes.
//!
//! # Files of others
//!
//! What a file is, is told by its content. Nothing in one can run code, name a file outside its folder or take memory
//! beyond a limit; whatever it claims is checked before a model is touched, and an [`Error`] says what is wrong with it and
//! what to do. [`Source`] lists the tensors of a file without reading them, and [`Manifest`] describes the files of a folder,
//! to tell later whether they are still the same.
//!
//! [`Checkpointer`]: checkpoint::Checkpointer
//! [`Checkpoint`]: checkpoint::Checkpoint

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
pub use manifest::{BURN_VERSION, Fault, Manifest, ManifestFile, ManifestTensor, Verification};
pub use model::{Architecture, load_model, save_model};
pub use names::Names;
pub use report::{LoadReport, Misshapen, Missing, Mistyped};
pub use save::{SaveFormat, SaveOptions, SaveReport, save, save_tensors, snapshot};
pub use save_dtype::SaveDType;
pub use source::{OpenOptions, Source, StoredTensor};
