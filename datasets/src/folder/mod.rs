//! Images in folders, one folder per class.

mod dataset;
mod decode;
mod scan;

pub use dataset::ImageFolder;
pub use decode::decode_image;
