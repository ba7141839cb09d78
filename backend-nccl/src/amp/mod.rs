//! Mixed precision.

mod autocast;
mod check;
mod convert;
mod plan;
mod policy;
mod precision;

pub use autocast::{Autocast, AutocastConfig};
pub use convert::{match_dtype, widen};
pub use policy::{OPS, OpClass, OpRule};
pub use precision::Precision;
