//! Mixed precision: convolutions and matrix products in half, parameters and what must be exact in f32; loss scaling that
//! keeps f16 gradients above underflow; clipping by global norm.
//!
//! # One step
//!
//! The order is that of `torch.amp`: cast, scale the loss, run the backward pass, unscale, clip, step, update. On many
//! ranks (or on one), with everything:
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), burn_nccl::Error> {
//! use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_nccl::amp::{Autocast, ClipGradNormConfig, ClipRanks, GradScalerConfig, Precision, widen};
//! use burn_nccl::{DdpConfig, DistributedDataParallel, ProcessGroup};
//!
//! let device = Device::flex().autodiff();
//! let group = ProcessGroup::from_environment()?;
//! let model = LinearConfig::new(4, 1).init(&device);
//! let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &DdpConfig::new())?;
//! let mut optimizer = SgdConfig::new().init();
//! let autocast = Autocast::new(Precision::F16);
//! autocast.check(&model, &device)?;
//! let mut scaler = GradScalerConfig::new().init()?.with_group(&group);
//! let clip = ClipGradNormConfig::new(1.0);
//! for _step in 0..3 {
//!     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let half = autocast.module(&ddp.hook(&model)?)?;
//!     let output = half.forward(autocast.input(batch));
//!     let loss = widen(output).powi_scalar(2).mean();
//!     let gradients = ddp.backward(&scaler.scale(loss), &model)?;
//!     let gradients = scaler.unscale(&model, gradients)?;
//!     let (gradients, _norm) = clip.clip(&model, gradients, ClipRanks::Replicas(&group))?;
//!     model = scaler.step(&mut optimizer, 0.1, model, gradients)?;
//!     scaler.update()?;
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! - **Without `DistributedDataParallel`**: `autocast.module(&model)?`, and the gradients are
//!   `GradientsParams::from_grads(scaler.scale(loss).backward(), &model)`: of `model`, whose parameters are the leaves.
//! - **With burn-train**: `DdpStrategy::with_autocast`.
//! - **In bf16**, leave the scaler out: bf16 has the range of f32.
//! - **A skipped step** leaves parameters, momentum and, under burn-train and in the recipes, the learning rate schedule
//!   alone. Running statistics have moved by then, with the forward pass, as in PyTorch: infinities that a forward pass
//!   makes stay in them, those that only the scaled backward pass makes do not reach them.
//! - **Without clipping**, leave `unscale` out: `step` does it.
//! - **Clipping before unscaling** would compare the threshold with gradients 65536 times too large.
//! - **On many ranks**, [`GradScaler::with_group`] makes all of them skip together, and [`ClipRanks::Replicas`] clip by the
//!   same norm.
//! - **A rank without a loss in one step** still steps and updates, or the others would wait for it. With
//!   `UnevenInputs::JoinActive` or `JoinWorld` it calls `ddp.shadow(&model)?` instead of `ddp.backward` and passes on
//!   what that returns; in the other modes such a rank is an error on all ranks.
//! - **With accumulation**, cast for every micro-batch and scale its loss; unscale, step and update once at the end of the
//!   window: the scale changes in `update` alone, so that all micro-batches of a window have the same. With
//!   [`Accumulation`](crate::accumulation::Accumulation), one window is:
//!
//!   ```
//!   # use burn::{nn::Linear, optim::ModuleOptimizer, tensor::Tensor};
//!   # use burn_nccl::{DistributedDataParallel, Error, accumulation::{Accumulation, Pass}};
//!   # use burn_nccl::amp::{Autocast, GradScaler, widen};
//!   # fn epoch(
//!   #     ddp: &mut DistributedDataParallel, mut model: Linear, optimizer: &mut ModuleOptimizer,
//!   #     autocast: &Autocast, scaler: &mut GradScaler, batches: Vec<Tensor<2>>,
//!   # ) -> Result<Linear, Error> {
//!   let (mut window, count) = (Accumulation::new(4), batches.len());
//!   for (index, batch) in batches.into_iter().enumerate() {
//!       let half = autocast.module(&ddp.hook(&model)?)?;
//!       let loss = scaler.scale(widen(half.forward(autocast.input(batch))).powi_scalar(2).mean());
//!       match window.next(index + 1 == count) {
//!           Pass::Keep => ddp.no_sync(&loss)?,
//!           Pass::Last { .. } => {
//!               let gradients = ddp.backward(&loss, &model)?;
//!               model = scaler.step(optimizer, 0.1, model, gradients)?;
//!               scaler.update()?;
//!           }
//!       }
//!   }
//!   # Ok(model)
//!   # }
//!   ```
//! - **Evaluation** takes `model.valid()`, which is f32; `autocast.module(&model.valid())` evaluates in half.
//! - **With several optimizers** (a GAN), see [`GradScaler::optimizer`].
//!
//! # What the policy casts
//!
//! [`Autocast::module`] copies a module for one step. In the copy every f32 parameter is a differentiable half cast, and
//! activations are half from the first layer whose input is half ([`Autocast::input`], [`match_dtype`]). The optimizer,
//! the record and the gradients belong to the f32 module.
//!
//! | parameters of | become |
//! |---|---|
//! | convolutions, `Linear`, `Embedding`, `PRelu`, attention, anything else | half |
//! | [`SyncBatchNorm`](crate::SyncBatchNorm) | stay f32: half in, half out, statistics in f32 |
//! | `LayerNorm` in f16 | stay f32: it computes in f32 |
//! | `RmsNorm`; `GroupNorm`, `InstanceNorm` in f16 | half, since Burn demands the type of the input; statistics in f32 |
//! | `LayerNorm`, `GroupNorm`, `InstanceNorm` in bf16 | half; burn-nn does not widen bf16, so the mean is rounded to bf16, an error of the size of its inputs' own |
//! | burn-nn's `BatchNorm` | refused: it cannot take half input; `SyncBatchNorm` has the same record |
//! | `Lstm`, `Gru`, `Rnn` | refused: they start from an f32 state; keep them in f32 and widen their input |
//! | running statistics, f64, [`full_precision_paths`](AutocastConfig::full_precision_paths) | stay as they are |
//!
//! Layers are known by the name of their struct, the only thing that Burn's `Module` tells of them.
//!
//! # What the forward pass must do
//!
//! Burn has no dispatch hook, so a library cannot change what an op computes in. Where [`OPS`], the table of torch.amp,
//! says [`OpClass::Full`], call [`widen`] first:
//!
//! - **Softmax, exponentials, logarithms, powers, reciprocals**: `softmax(widen(x), 1)`. Half rounds their results, and
//!   f16 overflows at `exp(11.1)`.
//! - **Sums, means and average pools of many values**: Flex, for one, sums in f32 but pools f16 in f16, where a sum beyond
//!   2048 loses its small terms: the mean of 6400 ones is 0.32.
//! - **Losses and norms**: `criterion.forward(widen(logits), targets)`.
//! - **After a layer that stays in f32**, or before one: `norm.forward(widen(x))`, `match_dtype(x, &layer.weight.val())`.
//! - **Before what holds plain tensors** (`PositionalEncoding`, `RotaryEncoding`, class weights of a loss): the policy does
//!   not see them, so they are f32.
//!
//! Two operands must have one type. On Flex a difference is a panic that names both. Burn's GPU kernels do not check it
//! without its `fusion` feature and read one operand as if it had the type of the other, so run a new model on Flex once.
//!
//! # What differs from torch.amp
//!
//! - Torch casts at each op, and caches weight casts; here each weight is cast once per step and activations stay half.
//! - Torch runs the ops of its f32 list in f32 by itself; here the forward pass widens. Inside burn-nn's
//!   `MultiHeadAttention` nobody does: its softmax is half (Flex computes it in f32 and rounds the result).
//! - Torch adds half and f32 in f32; Burn does not add them.
//! - Torch's `Embedding` gives f32; here it gives half, which is what the next layer takes.
//! - Torch's layer, group and RMS norms give f32; here they give the type of their input.
//!
//! # Backends
//!
//! CUDA and Flex have both half types; ndarray has none, and [`Autocast::check`] says so. On a CPU half is for trying
//! out a run: Flex computes most of it in f32 and converts.

mod autocast;
mod check;
mod clip;
mod convert;
mod exchange;
mod grad_scaler;
mod gradients;
mod plan;
mod policy;
mod precision;
mod scaler;

pub use crate::ops::GradientNorm;
pub use autocast::{Autocast, AutocastConfig};
pub use clip::{ClipGradNormConfig, ClipRanks};
pub use convert::{match_dtype, widen};
pub use grad_scaler::{GradScaler, LossScale, ScaledOptimizer};
pub(crate) use gradients::{Accepted, scale as scale_gradients};
pub use policy::{OPS, OpClass, OpRule};
pub use precision::Precision;
pub use scaler::{GradScalerConfig, GradScalerState, ScaleChange, ScaleState};
