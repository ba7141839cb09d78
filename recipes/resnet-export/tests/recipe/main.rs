//! The built recipe, run as a user runs it.

mod bench;
mod bundle;
mod classify;
mod export;
mod fixtures;
mod fuzz;
mod import;
mod interrupted;
mod page;
mod serve;
mod support;
mod verify;
