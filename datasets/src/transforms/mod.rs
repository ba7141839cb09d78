//! From a decoded image to the network's input values.

mod affine;
mod crop;
mod frame;
mod normalize;
mod pipeline;
mod resample;
mod transform;
mod validate;
mod window;

pub use normalize::Normalization;
pub use pipeline::{Pipeline, SampleKey, Scratch};
pub use transform::Transform;
