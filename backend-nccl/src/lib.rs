//! Distributed data-parallel training for Burn.

pub mod launch;
