//! The ResNet family for Burn, weight-compatible with torchvision.
//!
//! One [`ResNetConfig`] describes the five depths, the two stems and the norm layer; it is a Burn `Config`, so
//! a run can save what it built.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_nccl_models::{Depth, ResNetConfig, Stem};
//!
//! # #[cfg(feature = "flex")] {
//! let device = Device::flex();
//! let model = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).init(&device);
//! let logits = model.forward(Tensor::zeros([1, 3, 8, 8], &device));
//! assert_eq!(logits.dims(), [1, 10]);
//! # }
//! ```
//!
//! # Names of parameters
//!
//! Paths in a record are torchvision's `state_dict` keys: `conv1`, `bn1`, `layer1.0.conv1`,
//! `layer1.0.downsample.0`, `fc`. Three differences are mechanical, and [`burn_nccl_records::load`]
//! undoes them by the type of the layer that holds the parameter:
//!
//! | torchvision | here | why |
//! |---|---|---|
//! | `bn1.weight`, `bn1.bias` | `bn1.gamma`, `bn1.beta` | names of Burn's `BatchNorm` |
//! | `fc.weight` `[classes, features]` | `fc.weight` `[features, classes]` | Burn's `Linear` computes `x W` |
//! | `bn1.num_batches_tracked` | none | only read when PyTorch's momentum is `None` |

mod block;
mod config;
mod error;
mod norm;
mod pointwise;
mod resnet;

pub use block::Block;
pub use config::{Depth, ResNetConfig, Stem};
pub use error::ModelError;
pub use norm::NormConfig;
pub use resnet::ResNet;
