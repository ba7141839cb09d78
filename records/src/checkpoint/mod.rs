//! Checkpoints: all that a training needs to go on after a crash as if nothing had happened.

mod checkpointer;
mod config;
mod find;
mod open;
mod state;

pub use checkpointer::Checkpointer;
pub use config::{Best, CheckpointConfig, OnFailure};
pub use find::{Broken, Found, find, find_agreed};
pub use open::Checkpoint;
pub use state::{SamplerState, TrainingState, step_seed};
