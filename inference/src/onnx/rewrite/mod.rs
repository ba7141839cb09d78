//! Changes a graph into an equal one that costs less.

mod dead;
mod fold;
mod hoist;
mod index;
mod names;
mod narrow;
mod reshape;
mod weights;
mod widen;

pub(super) use fold::fold_batch_norms;
pub(super) use hoist::hoist_constants;
pub(super) use narrow::narrow;
pub(super) use reshape::fold_reshapes;
pub(super) use widen::widened;
