//! Weights and checkpoints for [Burn](https://burn.dev): in from PyTorch, safetensors and burnpack, out again, and
//! training states that survive a crash.

pub mod checkpoint;
mod error;

pub use error::{Error, Result};
