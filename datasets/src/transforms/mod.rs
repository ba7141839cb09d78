//! From a decoded image to the network's input values.

mod affine;
mod crop;
mod frame;
mod normalize;
mod pipeline;
mod resample;
mod transform;

pub use normalize::Normalization;
pub use pipeline::{Pipeline, SampleKey, Scratch};
pub use transform::Transform;
