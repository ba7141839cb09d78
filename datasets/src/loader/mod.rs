//! From datasets to batches on a device, ahead of the training loop.

mod batch;
mod batches;
mod config;
mod dataloader;
mod workers;

pub use batch::Batch;
pub use batches::Batches;
pub use config::LoaderConfig;
pub use dataloader::Loader;
