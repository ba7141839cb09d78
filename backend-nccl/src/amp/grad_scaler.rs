//! [`GradScaler`]: loss scaling on tensors, in step with the other ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

use super::exchange::{Checked, exchange};
use super::gradients::{self, Accepted};
use super::scaler::{GradScalerConfig, GradScalerState, ScaleChange, Scaler};
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site;

/// The factor that losses are multiplied by now, for code that does not hold the [`GradScaler`], such as a burn-train
/// step. Clones follow the scaler; a module keeps one in a `#[module(skip)]` field.
#[derive(Clone, Debug)]
pub struct LossScale(Arc<AtomicU32>);

impl LossScale {
    fn new(factor: f32) -> Self {
        Self(Arc::new(AtomicU32::new(factor.to_bits())))
    }

    fn set(&self, factor: f32) {
        self.0.store(factor.to_bits(), Ordering::Release);
    }

    /// The current factor; 1 where the scaler is disabled.
    pub fn factor(&self) -> f32 {
        f32::from_bits(self.0.load(Ordering::Acquire))
    }

    /// `loss * factor`. Compute the loss in f32: an f16 one exceeds its range under this factor.
    ///
    /// # Shapes
    /// Input and output `[..]`.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        let factor = self.factor();
        if factor == 1.0 { loss } else { loss.mul_scalar(factor) }
    }
}

/// Dynamic loss scaling: `update` halves the scale after an overflow and doubles it after 2000 steps without one.
///
/// In each step the loss is multiplied by the scale and each gradient by its inverse, `f32(1 / f64(scale))`. A step
/// whose gradients have an infinity or NaN anywhere, on any rank, is left out on all ranks.
///
/// Calls come in this order, checked for each optimizer: [`unscale`](Self::unscale) (optional), [`step`](Self::step),
/// then [`update`](Self::update) once for all. Until `update` the scale does not change, so all micro-batches of an
/// accumulation window have the same; an `update` in the middle of a window, before its gradients were unscaled, is
/// an error.
///
/// With a group, every rank makes the same calls, one without a gradient too: it passes empty `GradientsParams`.
///
/// Unlike PyTorch, which looks at gradients before it unscales them, a gradient also counts as overflowed where a
/// scale below 1 takes it beyond the range of its type.
///
/// Source: `torch.amp.GradScaler`, and `torch.distributed.fsdp.sharded_grad_scaler` for the exchange.
#[derive(Debug)]
pub struct GradScaler {
    scaler: Scaler,
    loss_scale: LossScale,
    group: Option<ProcessGroup>,
    skipped_steps: u64,
}

impl GradScalerConfig {
    /// A scaler for one process; add the others with [`GradScaler::with_group`].
    ///
    /// # Errors
    /// [`Error::InvalidLossScaling`].
    pub fn init(&self) -> Result<GradScaler> {
        let scaler = Scaler::new(self.clone())?;
        let loss_scale = LossScale::new(scaler.factor());
        Ok(GradScaler { scaler, loss_scale, group: None, skipped_steps: 0 })
    }
}

impl GradScaler {
    /// Decides together with the ranks of `group`: one exchange of twelve bytes for each optimizer and step.
    #[must_use]
    pub fn with_group(mut self, group: &ProcessGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// A handle to the current factor.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale.clone()
    }

    /// `loss * scale`; see [`LossScale::scale`].
    ///
    /// # Shapes
    /// Input and output `[..]`.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        self.loss_scale.scale(loss)
    }

    /// Divides the gradients of `model` by the scale, in order to clip or inspect them before [`step`](Self::step).
    ///
    /// # Errors
    /// [`Error::UnscaledTwice`] and [`Error::UnscaledAfterStep`]; [`Error::HalfPrecisionGradient`] for f16 gradients;
    /// on all ranks [`Error::LossScaleMismatch`] and [`Error::NoGradients`]; what a collective returns. An error that
    /// only this rank has ends the group, in which the others wait for it.
    #[track_caller]
    pub fn unscale<M: Module>(&mut self, model: &M, gradients: GradientsParams) -> Result<GradientsParams> {
        self.optimizer(0).unscale(model, gradients)
    }

    /// Takes the optimizer step, or returns `model` as it is where a gradient is not finite. Unscales first, unless
    /// [`unscale`](Self::unscale) has.
    ///
    /// # Errors
    /// [`Error::SteppedTwice`], and what [`unscale`](Self::unscale) returns.
    #[track_caller]
    pub fn step<M: Module>(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: impl Into<ModuleLearningRate>,
        model: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        self.optimizer(0).step(optimizer, learning_rate, model, gradients)
    }

    /// The same for one of several optimizers that step between two updates, numbered as the caller likes.
    /// [`unscale`](Self::unscale) and [`step`](Self::step) are those of number 0.
    pub fn optimizer(&mut self, number: usize) -> ScaledOptimizer<'_> {
        ScaledOptimizer { owner: self, number }
    }

    /// Ends the iteration, after all optimizers have stepped: moves the scale.
    ///
    /// # Errors
    /// [`Error::NothingUnscaled`] where no gradients were unscaled since the last update; [`Error::LossScaleFloor`]
    /// (on all ranks) where an overflow would take the scale below `min_scale`.
    pub fn update(&mut self) -> Result<ScaleChange> {
        if !self.scaler.is_enabled() {
            return Ok(ScaleChange::Kept);
        }
        let change = self.scaler.update()?;
        self.loss_scale.set(self.scaler.factor());
        Ok(change)
    }

    /// Optimizer steps that were left out since this scaler was made.
    pub fn skipped_steps(&self) -> u64 {
        self.skipped_steps
    }

    /// What a checkpoint needs; take it after [`update`](Self::update).
    pub fn state(&self) -> GradScalerState {
        self.scaler.state()
    }

    /// Continues from `state`; a disabled scaler ignores it. Every rank must load the same.
    ///
    /// # Errors
    /// [`Error::EmptyScalerState`] and [`Error::InvalidLossScaling`]; the scaler has not changed then.
    pub fn load_state(&mut self, state: &GradScalerState) -> Result<()> {
        self.scaler.load_state(state)?;
        self.loss_scale.set(self.scaler.factor());
        Ok(())
    }

    #[cfg(feature = "train")]
    pub(crate) fn set_group(&mut self, group: &ProcessGroup) {
        self.group = Some(group.clone());
    }

    /// Ends the group for an error that only this rank knows of: the others are on their way into the exchange.
    fn abort_with(&self, error: Error) -> Error {
        if let Some(group) = &self.group {
            group.abort(&format!("rank {} cannot unscale its gradients: {error}", group.rank()));
        }
        error
    }
}

/// One of several optimizers that share a [`GradScaler`].
#[derive(Debug)]
pub struct ScaledOptimizer<'a> {
    owner: &'a mut GradScaler,
    number: usize,
}

impl ScaledOptimizer<'_> {
    /// As [`GradScaler::unscale`].
    ///
    /// # Errors
    /// As [`GradScaler::unscale`].
    #[track_caller]
    pub fn unscale<M: Module>(&mut self, model: &M, gradients: GradientsParams) -> Result<GradientsParams> {
        let (owner, optimizer) = (&mut *self.owner, self.number);
        if !owner.scaler.is_enabled() {
            return Ok(gradients);
        }
        let (gradients, own) =
            owner.unscale_here(optimizer, model, gradients).map_err(|error| owner.abort_with(error))?;
        let _site = site::enter();
        let overflowed = exchange(owner.group.as_ref(), own, optimizer)?;
        owner.scaler.record_unscaled(optimizer, overflowed);
        Ok(gradients)
    }

    /// As [`GradScaler::step`].
    ///
    /// # Errors
    /// As [`GradScaler::step`].
    #[track_caller]
    pub fn step<M: Module>(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        learning_rate: impl Into<ModuleLearningRate>,
        model: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        match self.gate(&model, gradients)? {
            Some(gradients) => Ok(optimizer.step(learning_rate, model, gradients)),
            None => Ok(model),
        }
    }

    /// The gradients to take the step with, for an optimizer that is no `ModuleOptimizer`, or `None` where the step
    /// must be left out. Counts as the step.
    ///
    /// # Errors
    /// As [`GradScaler::step`].
    #[track_caller]
    pub fn gate<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<Option<GradientsParams>> {
        if !self.owner.scaler.is_enabled() {
            return Ok(Some(gradients));
        }
        self.owner.scaler.check_step(self.number).map_err(|error| self.owner.abort_with(error))?;
        let unscaled = self.owner.scaler.is_unscaled(self.number);
        let gradients = if unscaled { gradients } else { self.unscale(model, gradients)? };
        let skips = self.owner.scaler.record_step(self.number);
        self.owner.skipped_steps += u64::from(skips);
        Ok((!skips).then_some(gradients))
    }
}

impl GradScaler {
    /// What unscaling does on this rank alone.
    fn unscale_here<M: Module>(
        &self,
        optimizer: usize,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<(GradientsParams, Checked)> {
        self.scaler.check_unscale(optimizer)?;
        let scaled = gradients::scale(model, gradients, self.scaler.inverse(), Accepted::AboveF16)?;
        let own = Checked {
            any: scaled.any(),
            overflowed: !scaled.all_finite()?,
            scale: self.scaler.factor(),
            growth_tracker: self.scaler.growth_tracker(),
        };
        Ok((scaled.gradients, own))
    }
}
