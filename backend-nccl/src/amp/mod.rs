//! Mixed precision: loss scaling that keeps half-precision gradients above underflow, and clipping by global norm.
//!
//! # One step
//!
//! The order is that of `torch.amp`: scale the loss, run the backward pass, unscale, clip, step, update.
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl::Error> {
//! use burn::{nn::LinearConfig, optim::{GradientsParams, SgdConfig}, tensor::{Device, Distribution, Tensor}};
//! use burn_nccl::amp::{ClipGradNormConfig, GradScalerConfig};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 1).init(&device);
//! let mut optimizer = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//! let clip = ClipGradNormConfig::new(1.0);
//! for _step in 0..3 {
//!     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = model.forward(batch).powi_scalar(2).mean();
//!     let gradients = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
//!     let gradients = scaler.unscale(&model, gradients)?;
//!     let (gradients, _norm) = clip.clip(&model, gradients, None)?;
//!     model = scaler.step(&mut optimizer, 0.1, model, gradients)?;
//!     scaler.update()?;
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! - **Without clipping**, leave `unscale` out: `step` does it.
//! - **Clipping before unscaling** would compare the threshold with gradients 65536 times too large.
//! - **On many ranks**, [`GradScaler::with_group`] makes all of them skip together. With `DistributedDataParallel`:
//!   `ddp.backward(&scaler.scale(loss), &model)?` gives the gradients, everything else stays as it is.
//! - **A rank without a loss in one step** still steps and updates, or the others would wait for it. With
//!   `UnevenInputs::JoinActive` or `JoinWorld` it calls `ddp.shadow(&model)?` instead of `ddp.backward` and passes on
//!   what that returns; in the other modes such a rank is an error on all ranks.
//! - **With accumulation**, scale the loss of every micro-batch, and unscale, step and update once at the end of the
//!   window: the scale changes in `update` alone, so that all micro-batches of a window have the same.
//! - **With several optimizers** (a GAN), see [`GradScaler::optimizer`].

mod clip;
mod exchange;
mod grad_scaler;
mod gradients;
mod scaler;

pub use crate::ops::GradientNorm;
pub use clip::ClipGradNormConfig;
pub use grad_scaler::{GradScaler, LossScale, ScaledOptimizer};
pub(crate) use gradients::{Accepted, scale as scale_gradients};
pub use scaler::{GradScalerConfig, GradScalerState, ScaleChange, ScaleState};
