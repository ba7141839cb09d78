//! One pass over the gradients of a module: multiply, and look for what is not finite.

use std::collections::HashSet;

use burn::backend::Dispatch;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, try_read_sync};

use crate::backends;
use crate::error::{Error, Result};
use crate::ops::CollectiveBackend;

/// Which gradients [`scale`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// All.
    Any,
    /// All but f16, in which a gradient that the scale had kept from underflow would underflow when unscaled.
    AboveF16,
}

/// Gradients after [`scale`].
pub(crate) struct Scaled {
    pub(crate) gradients: GradientsParams,
    /// One number each, which is not 0 where a gradient is not finite; on the device until somebody asks.
    checks: Vec<Tensor<1>>,
}

impl Scaled {
    /// Whether there was any gradient.
    pub(crate) fn any(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Whether all are finite. Reads one number for all of them, which waits for the device.
    pub(crate) fn all_finite(&self) -> Result<bool> {
        Ok(read(self.checks.clone())?.into_iter().all(|check| check == 0.0))
    }
}

/// Multiplies each gradient of `model` by `factor`.
///
/// # Errors
/// [`Error::HalfPrecisionGradient`] for a gradient that is not `accepted`; [`Error::NoBackend`].
pub(crate) fn scale<M: Module>(
    model: &M,
    gradients: GradientsParams,
    factor: f32,
    accepted: Accepted,
) -> Result<Scaled> {
    backends::check()?;
    let scaled = Scaled { gradients, checks: Vec::new() };
    let mut visitor =
        Scale { scaled, factor, accepted, path: Vec::new(), seen: HashSet::new(), outcome: Ok(()) };
    model.visit(&mut visitor);
    visitor.outcome.map(|()| visitor.scaled)
}

struct Scale {
    scaled: Scaled,
    factor: f32,
    accepted: Accepted,
    path: Vec<String>,
    /// Tied weights are visited more than once and have one gradient.
    seen: HashSet<ParamId>,
    outcome: Result<()>,
}

impl ModuleVisitor for Scale {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.outcome.is_err() || !self.seen.insert(param.id) {
            return;
        }
        let Some(gradient) = self.scaled.gradients.remove::<D>(param.id) else { return };
        let gradient = gradient.without_autodiff();
        if self.accepted == Accepted::AboveF16 && gradient.dtype() == DType::F16 {
            self.outcome = Err(Error::HalfPrecisionGradient { parameter: self.path.join(".") });
            return;
        }
        let (gradient, check) = Dispatch::scale_gradient(gradient.into_dispatch(), self.factor);
        self.scaled.gradients.register(param.id, Tensor::<D>::from_dispatch(gradient));
        self.scaled.checks.push(Tensor::from_dispatch(check));
    }
}

/// Reads numbers that lie in tensors of one element each, all at once.
pub(crate) fn read(numbers: Vec<Tensor<1>>) -> Result<Vec<f32>> {
    let Some(device) = numbers.first().map(Tensor::device) else { return Ok(Vec::new()) };
    let numbers = numbers.into_iter().map(|number| number.to_device(&device)).collect();
    let failed = |cause: String| Error::TensorRead { cause };
    try_read_sync(Tensor::cat(numbers, 0).into_data_async())
        .ok_or_else(|| failed("the backend cannot be read without waiting".into()))?
        .map_err(|error| failed(error.to_string()))?
        .try_into_vec()
        .map_err(|error| failed(format!("{error:?}")))
}
