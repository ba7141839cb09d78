//! What a folder of files must hold, and whether it does.

mod base;
mod files;
mod verification;

pub use base::{BURN_VERSION, Manifest, ManifestFile, ManifestTensor};
pub use verification::{Fault, Verification};
