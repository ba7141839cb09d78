//! From a compressed picture to pixels.

mod bytes;
mod error;
mod file;
mod jpeg;

pub use bytes::{DecodeLimits, decode_image_bytes};
pub use error::DecodeError;
pub use file::decode_image;
