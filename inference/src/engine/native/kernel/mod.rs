//! The kernel that nearly all time is spent in: products of a few pixels with one or two blocks of output channels.

mod table;
mod tile;

pub(super) use table::Kernels;
pub(super) use tile::{Activation, Tile};
