//! Gradient accumulation that averages: several micro-batches for one optimizer step, as if they were one batch.
//!
//! [`Accumulation`] says where windows end; [`GradientAverage`] holds the gradients of a loop without
//! [`DistributedDataParallel`](crate::DistributedDataParallel), which has `no_sync` for that.
//!
//! ```
//! # use burn::{nn::Linear, optim::{GradientsParams, ModuleOptimizer}, tensor::Tensor};
//! # use burn_nccl::{Error, accumulation::{Accumulation, GradientAverage, Pass}};
//! # fn epoch(mut model: Linear, optimizer: &mut ModuleOptimizer, batches: Vec<Tensor<2>>) -> Result<Linear, Error> {
//! let (mut window, mut average) = (Accumulation::new(4), GradientAverage::new());
//! let count = batches.len();
//! for (index, batch) in batches.into_iter().enumerate() {
//!     let loss = model.forward(batch).powi_scalar(2).mean();
//!     average.add(&model, GradientsParams::from_grads(loss.backward(), &model));
//!     if let Pass::Last { .. } = window.next(index + 1 == count) {
//!         let gradients = average.take(&model)?;
//!         model = optimizer.step(0.1, model, gradients);
//!     }
//! }
//! # Ok(model)
//! # }
//! ```

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::amp;
use crate::error::{Error, Result};

/// What to do with the gradients of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Keep them; the window goes on.
    Keep,
    /// Average over the window and take the optimizer step.
    Last {
        /// The micro-batches in this window, which the sum is divided by: fewer than asked for where the epoch ends.
        passes: usize,
    },
}

/// Counts micro-batches into windows of one optimizer step each.
#[derive(Clone, Debug)]
pub struct Accumulation {
    micro_batches: usize,
    passes: usize,
}

impl Accumulation {
    /// Windows of `micro_batches`.
    ///
    /// # Panics
    /// If it is 0.
    pub fn new(micro_batches: usize) -> Self {
        assert!(micro_batches > 0, "an accumulation window has at least one micro-batch");
        Self { micro_batches, passes: 0 }
    }

    /// Counts one micro-batch more; `is_last` ends a window early, at the end of an epoch.
    pub fn next(&mut self, is_last: bool) -> Pass {
        self.passes += 1;
        if self.passes < self.micro_batches && !is_last {
            return Pass::Keep;
        }
        Pass::Last { passes: std::mem::take(&mut self.passes) }
    }
}

/// Gradients of the micro-batches so far: `1/k Σ_micro-batch dL/dp`.
///
/// Half-precision gradients are summed in f32. A parameter without a gradient in some of the micro-batches had zeros
/// there. With losses that are means, the result is the gradient of the joined batch if all micro-batches are of the
/// same size. Burn's `GradientsAccumulator` does not divide, which multiplies the learning rate by `k`.
#[derive(Debug, Default)]
pub struct GradientAverage {
    sums: GradientsParams,
    passes: usize,
}

impl GradientAverage {
    /// An empty window.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the gradients of one micro-batch.
    pub fn add<M: Module>(&mut self, model: &M, gradients: GradientsParams) {
        let mut visitor = Add { sums: &mut self.sums, gradients };
        model.visit(&mut visitor);
        self.passes += 1;
    }

    /// The micro-batches in the window so far.
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// The average over the window, in each parameter's own type; a new window begins.
    ///
    /// # Errors
    /// [`Error::EmptyWindow`] where nothing was added.
    pub fn take<M: Module>(&mut self, model: &M) -> Result<GradientsParams> {
        let Self { sums, passes } = std::mem::take(self);
        if passes == 0 {
            return Err(Error::EmptyWindow);
        }
        let factor = (1.0 / passes as f64) as f32;
        let mut gradients = amp::scale_gradients(model, sums, factor, amp::Accepted::Any)?.gradients;
        model.visit(&mut Narrow { gradients: &mut gradients });
        Ok(gradients)
    }
}

struct Add<'a> {
    sums: &'a mut GradientsParams,
    /// Those not yet added: what is taken out counts once, however often its parameter is visited.
    gradients: GradientsParams,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let gradient = match gradient.dtype() {
            DType::F16 | DType::BF16 => gradient.cast(DType::F32),
            _ => gradient,
        };
        let sum = match self.sums.remove::<D>(param.id) {
            Some(sum) => sum + gradient,
            None => gradient,
        };
        self.sums.register(param.id, sum);
    }
}

/// Gives each gradient the type of its parameter, which optimizers expect.
struct Narrow<'a> {
    gradients: &'a mut GradientsParams,
}

impl ModuleVisitor for Narrow<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let dtype = param.base().dtype();
        if let Some(gradient) = self.gradients.get::<D>(param.id).filter(|gradient| gradient.dtype() != dtype)
        {
            self.gradients.register(param.id, gradient.cast(dtype));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(micro_batches: usize, batches: usize) -> Vec<Pass> {
        let mut window = Accumulation::new(micro_batches);
        (1..=batches).map(|batch| window.next(batch == batches)).collect()
    }

    #[test]
    fn windows_end_after_k_micro_batches_and_the_last_one_with_the_epoch() {
        let (keep, last) = (Pass::Keep, |passes| Pass::Last { passes });
        assert_eq!(run(3, 8), [keep, keep, last(3), keep, keep, last(3), keep, last(2)]);
        assert_eq!(run(3, 6), [keep, keep, last(3), keep, keep, last(3)]);
        assert_eq!(run(4, 1), [last(1)]);
    }

    #[test]
    fn windows_of_one_step_with_every_batch() {
        assert_eq!(run(1, 2), [Pass::Last { passes: 1 }; 2]);
    }

    #[test]
    fn the_next_epoch_begins_a_new_window() {
        let mut window = Accumulation::new(2);
        assert_eq!(window.next(true), Pass::Last { passes: 1 });
        assert_eq!(window.next(false), Pass::Keep);
        assert_eq!(window.next(false), Pass::Last { passes: 2 });
    }

    #[test]
    #[should_panic(expected = "at least one micro-batch")]
    fn windows_of_none_are_refused() {
        Accumulation::new(0);
    }
}
