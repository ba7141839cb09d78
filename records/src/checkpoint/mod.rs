//! Checkpoints: all that a training needs to go on after a crash as if nothing had happened.
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl_records::Error> {
//! use burn::{module::Module, nn::LinearConfig, optim::AdamConfig, tensor::Device};
//! use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, Checkpointer, TrainingState, find};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path().join("checkpoints");
//! let device = Device::flex().autodiff();
//! let (mut model, mut optimizer) = (LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
//! let mut state = TrainingState::default();
//!
//! let found = find(&folder)?; // find_agreed, with several ranks
//! if let Some(newest) = &found.newest {
//!     let checkpoint = Checkpoint::open(newest)?;
//!     model = checkpoint.load_model(&model)?;
//!     optimizer = checkpoint.load_optimizer(optimizer, &model)?;
//!     state = checkpoint.state().clone();
//! }
//!
//! let mut checkpointer = Checkpointer::open(&folder, CheckpointConfig::default(), None)?;
//! while state.step < 100 {
//!     // ... one step of training ...
//!     state.step += 1;
//!     if state.step % 50 == 0 {
//!         checkpointer.save(&model, &optimizer, state.clone())?;
//!     }
//! }
//! checkpointer.finish()?;
//! # assert_eq!(Checkpoint::open(&folder)?.state().step, 100);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! # On disk
//!
//! `<folder>/step-N` holds `model.bpk` and `optimizer.bpk` (Burn's own format), `state.json`, and `manifest.json` with the
//! SHA-256 of the others. It is written under another name, every file down to the disk and the manifest last, and then
//! renamed. Nothing in it can execute code.

mod agreement;
mod checkpointer;
mod config;
mod contents;
mod failure;
mod find;
mod folder;
mod layout;
mod lock;
mod open;
mod optimizer_file;
mod retention;
mod snapshot;
mod state;
mod writer;

pub use checkpointer::Checkpointer;
pub use config::{Best, CheckpointConfig, OnFailure};
pub(crate) use contents::check_model;
pub use failure::CheckpointFailure;
pub(crate) use find::newest_weights;
pub use find::{Broken, Found, find, find_agreed};
pub(crate) use layout::{MODEL, Named, named};
pub use open::Checkpoint;
pub use state::{SamplerState, TrainingState, step_seed};
