//! Images in folders, one folder per class.

mod dataset;
mod scan;

pub use dataset::ImageFolder;
