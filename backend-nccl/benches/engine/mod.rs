//! Measures an all-reduce in ranks that stay alive between the measurements.
//!
//! What is compared runs in turn, a fraction of a second each, so that both sides see the same machine. A [`Side`] is a
//! set of ranks, of this program or of another; each of its ranks connects to the parent, takes an [`Order`] a line, and
//! answers with the seconds that it took. Ranks without an order block in a read, where they cost nothing.
//!
//! The bench of this crate and `recipe-bench` share this folder.
// Each of the two is a program of its own and uses its part of this.
#![allow(dead_code, unused_imports)]

mod order;
mod rank;
mod side;
mod statistics;

pub(crate) use order::{Measured, Order, Variant};
pub(crate) use rank::{play, rank_arguments};
pub(crate) use side::{Side, SideError};
pub(crate) use statistics::median;

/// What can end a measurement.
pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;
