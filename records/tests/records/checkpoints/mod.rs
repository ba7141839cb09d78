//! Checkpoints on real files.

mod deciding;
mod finding;
mod hostile;
mod keeping;
mod resuming;
mod snapshot;
mod training;
