//! Distributed data-parallel training for Burn.
