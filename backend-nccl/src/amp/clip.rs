//! Clipping by the norm of all gradients together.

use std::collections::HashSet;

use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::gradients::{self, Accepted};
use crate::backends;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::ops::{CollectiveBackend, GradientNorm};
use crate::site::{self, Purpose};
use crate::transport::DType;

/// Keeps a norm of zero from dividing; PyTorch's constant.
const EPSILON: f64 = 1e-6;

/// Clipping by the global norm: the gradients of all parameters count as one vector, whose direction stays.
///
/// `g ← g · min(1, max_norm / (‖g‖ + 1e-6))`. Burn's own clipping by norm takes each tensor by itself.
///
/// Clip after [`GradScaler::unscale`](super::GradScaler::unscale): `max_norm` is meant for the true gradients.
///
/// Source: `torch.nn.utils.clip_grad_norm_`.
#[derive(Config, Debug, PartialEq)]
pub struct ClipGradNormConfig {
    /// The largest norm that gradients keep; above 0.
    pub max_norm: f64,
    /// Which norm.
    #[config(default = "GradientNorm::L2")]
    pub norm: GradientNorm,
    /// Whether a norm that is not finite is an error. With a `GradScaler` it should not be: it skips such a step.
    #[config(default = false)]
    pub error_if_nonfinite: bool,
}

/// What the gradients of this rank are among those of the others. Where there are others, every rank must call.
#[derive(Clone, Copy, Debug)]
pub enum ClipRanks<'a> {
    /// There are no others.
    Alone,
    /// The same as every other rank's, as in data-parallel training. All ranks clip by the norm that rank 0 finds: those
    /// of equal gradients may differ in their last bits, since a GPU chooses how it sums up in each process anew, and the
    /// replicas would drift apart.
    Replicas(&'a ProcessGroup),
    /// Those of a part of the model, as where it is sharded: the norm is that of all ranks' gradients together.
    Shards(&'a ProcessGroup),
}

impl ClipGradNormConfig {
    /// Clips the gradients of `model` and returns them with the norm that they had, the same on all `ranks`.
    ///
    /// # Errors
    /// [`Error::InvalidMaxNorm`]; [`Error::NonFiniteNorm`] if asked for, on all ranks; what the collective returns.
    #[track_caller]
    pub fn clip<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        ranks: ClipRanks<'_>,
    ) -> Result<(GradientsParams, f64)> {
        let _site = site::enter();
        backends::check()?;
        // A negative limit would turn the gradients around.
        if self.max_norm.is_nan() || self.max_norm <= 0.0 {
            return Err(Error::InvalidMaxNorm { max_norm: self.max_norm });
        }
        let mut visitor =
            Norms { norm: self.norm, gradients: &gradients, seen: HashSet::new(), norms: Vec::new() };
        model.visit(&mut visitor);
        let norms = gradients::read(visitor.norms)?;
        let own = combine(self.norm, norms.into_iter().map(f64::from));
        let total = match ranks {
            ClipRanks::Alone => own,
            ClipRanks::Replicas(group) => of_rank_0(own, group)?,
            ClipRanks::Shards(group) => combine(self.norm, gather(own, group)?.into_iter()),
        };
        if self.error_if_nonfinite && !total.is_finite() {
            return Err(Error::NonFiniteNorm { norm: total });
        }
        let factor = self.max_norm / (total + EPSILON);
        if factor >= 1.0 {
            return Ok((gradients, total));
        }
        let scaled = gradients::scale(model, gradients, factor as f32, Accepted::Any)?;
        Ok((scaled.gradients, total))
    }
}

/// The norm of a vector from those of its parts. A part that is NaN makes the whole NaN.
fn combine(norm: GradientNorm, parts: impl Iterator<Item = f64>) -> f64 {
    match norm {
        GradientNorm::L1 => parts.sum(),
        GradientNorm::L2 => parts.map(|part| part * part).sum::<f64>().sqrt(),
        GradientNorm::Max => {
            parts.fold(0.0, |most, part| if part > most || part.is_nan() { part } else { most })
        }
    }
}

/// What a norm is for, in messages.
const PURPOSE: Purpose = Purpose::Of("the norm of all gradients");

fn of_rank_0(own: f64, group: &ProcessGroup) -> Result<f64> {
    let mut norm = own.to_ne_bytes();
    let _site = site::on_behalf_of(PURPOSE);
    group.broadcast(&mut norm, DType::F64, 0)?;
    Ok(f64::from_ne_bytes(norm))
}

fn gather(own: f64, group: &ProcessGroup) -> Result<Vec<f64>> {
    let mut all = vec![0.0; group.world_size()];
    let _site = site::on_behalf_of(PURPOSE);
    group.all_gather(&own.to_ne_bytes(), bytemuck::cast_slice_mut(&mut all), DType::F64)?;
    Ok(all)
}

struct Norms<'a> {
    norm: GradientNorm,
    gradients: &'a GradientsParams,
    /// Tied weights are visited more than once and have one gradient.
    seen: HashSet<ParamId>,
    norms: Vec<Tensor<1>>,
}

impl ModuleVisitor for Norms<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            let gradient = gradient.without_autodiff().into_dispatch();
            self.norms.push(Tensor::from_dispatch(Dispatch::gradient_norm(gradient, self.norm)));
        }
    }
}
