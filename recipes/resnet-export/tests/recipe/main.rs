//! The built recipe, run as a user runs it.

mod export;
mod fixtures;
mod interrupted;
mod verify;
