//! Checkpoints on real files.

mod deciding;
mod durability;
mod finding;
mod hostile;
mod keeping;
mod resuming;
mod snapshot;
mod training;
