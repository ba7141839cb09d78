//! Image datasets, transforms, the distributed sampler and a prefetching loader for
//! [Burn](https://burn.dev).
//!
//! The path of a picture: a dataset gives [`Image`]s (`u8`, channels first); a [`DistributedSampler`]
//! says which of them this rank sees in which order; a [`Pipeline`] of [`Transform`]s turns each into
//! `f32` values; the [`Loader`] does that ahead of the training loop and hands out [`Batch`]es on a device.
//!
//! Everything random is a pure function of (seed, epoch, index), so a run gives the same batches with
//! any number of workers, and can start in the middle of an epoch.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::Device;
//! use burn_nccl_datasets::{DataSource, LoaderConfig, Split, Transform, Pipeline};
//!
//! # fn main() -> Result<(), burn_nccl_datasets::DataError> {
//! let train = DataSource::Digits.load(Split::Train)?;
//! let pipeline = Pipeline::new([
//!     Transform::Resize { height: 32, width: 32 },
//!     Transform::RandomCrop { height: 32, width: 32, padding: 4 },
//!     Transform::ToRgb,
//! ]);
//! let loader = LoaderConfig::new(16)
//!     .with_workers(1)
//!     .with_seed(7)
//!     .with_shuffle(true)
//!     .with_drop_last(true)
//!     .with_rank(0)
//!     .with_world_size(2)
//!     .with_transforms(pipeline)
//!     .init(train, &Device::flex())?;
//! for batch in loader.epoch(0).take(2) {
//!     let batch = batch?;
//!     assert_eq!(batch.images.dims(), [16, 3, 32, 32]);
//!     assert_eq!(batch.labels.dims(), [16]);
//! }
//! # Ok(()) }
//! # main().unwrap(); }
//! ```

mod cifar;
mod decode;
mod digits;
mod error;
mod folder;
mod image;
mod loader;
mod memory;
mod random;
mod sampler;
mod source;
mod transforms;

pub use crate::cifar::{Cifar, load_cifar};
pub use crate::decode::{DecodeError, DecodeLimits, decode_image, decode_image_bytes};
pub use crate::digits::load_digits;
pub use crate::error::DataError;
pub use crate::folder::ImageFolder;
pub use crate::image::{Image, ImageDataset, Split};
pub use crate::loader::{Batch, Batches, Loader, LoaderConfig};
pub use crate::memory::MemoryDataset;
pub use crate::sampler::{DistributedSampler, Sampling};
pub use crate::source::DataSource;
pub use crate::transforms::{Normalization, Pipeline, SampleKey, Scratch, Transform};
