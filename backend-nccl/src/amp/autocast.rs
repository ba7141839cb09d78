//! [`Autocast`]: the half copy of a module.

use std::any::Any;
use std::collections::HashMap;

use burn::config::Config;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, FloatDType, Tensor};

use super::convert::cast_to;
use super::{Precision, check, plan};
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site;

/// Options of [`Autocast`].
#[derive(Config, Debug, PartialEq)]
pub struct AutocastConfig {
    /// The type of convolutions and matrix products.
    pub precision: Precision,
    /// Parameters that stay in f32 although the policy would cast them, or modules whose parameters all do. A path has
    /// the field names from the model's root, joined by dots (`layer4.1.conv2.weight`, `layer4`); `*` stands for any
    /// characters between two dots (`layer*.*.conv1`). Naming one parameter of a convolution, linear or norm layer keeps
    /// the layer, since its weight and bias must have one type.
    ///
    /// The forward pass must bring the input of such a layer to its type, by [`widen`](super::widen) or
    /// [`match_dtype`](super::match_dtype), and its output back.
    #[config(default = "Vec::new()")]
    pub full_precision_paths: Vec<String>,
}

impl AutocastConfig {
    /// Makes the policy.
    pub fn init(&self) -> Autocast {
        Autocast { config: self.clone() }
    }
}

/// The mixed-precision policy: half compute, f32 parameters. See the [module](crate::amp) for what it casts and what the
/// forward pass must do itself.
///
/// Source: `torch.autocast`; P. Micikevicius et al., "Mixed Precision Training", ICLR 2018.
#[derive(Clone, Debug)]
pub struct Autocast {
    config: AutocastConfig,
}

impl Autocast {
    /// A policy without exceptions.
    pub fn new(precision: Precision) -> Self {
        AutocastConfig::new(precision).init()
    }

    /// The type of convolutions and matrix products.
    pub fn precision(&self) -> Precision {
        self.config.precision
    }

    /// A copy of `module` for the forward pass of one step, whose parameters are half casts of those of `module`. The
    /// casts are differentiable: a backward pass leaves f32 gradients at the parameters of `module`, which is what the
    /// optimizer steps. Each parameter is cast once, tied weights together; running statistics are shared with `module`.
    ///
    /// In f32 the copy is a clone; that paths name something, [`check`](Self::check) finds out then.
    ///
    /// # Errors
    /// [`Error::AutocastPath`](crate::Error::AutocastPath) for a path that names nothing;
    /// [`Error::AutocastLayer`](crate::Error::AutocastLayer) for a layer that cannot take half input.
    pub fn module<M: Module>(&self, module: &M) -> Result<M> {
        let Some(dtype) = self.precision().half() else { return Ok(module.clone()) };
        let plan = plan::plan(module, self.precision(), &self.config.full_precision_paths)?;
        let mut mapper = CastMapper { cast: plan.cast.into_iter(), dtype, done: HashMap::new() };
        Ok(module.clone().map(&mut mapper))
    }

    /// Casts an input of the model to the policy's type; f64 and, in f32, everything stays as it is.
    ///
    /// # Shapes
    /// Input and output `[..]`.
    pub fn input<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.precision().half() {
            Some(dtype) if plan::is_castable(tensor.dtype()) => cast_to(tensor, dtype),
            _ => tensor,
        }
    }

    /// Finds out at the start, before the first step, whether `module` can run under the policy on `device`: each kind
    /// of op that its layers need is run once, forward and backward, in the half type.
    ///
    /// # Errors
    /// [`Error::AutocastUnsupported`](crate::Error::AutocastUnsupported), which names op, type and backend; and as
    /// [`module`](Self::module).
    pub fn check<M: Module>(&self, module: &M, device: &Device) -> Result<()> {
        let paths = &self.config.full_precision_paths;
        let Some(dtype) = self.precision().half() else { return plan::check_paths(module, paths) };
        let plan = plan::plan(module, self.precision(), paths)?;
        check::check(&plan.containers, dtype, self.precision(), device)
    }

    /// Compares the policy with those of the other ranks, at the start. Gradients are f32 under every policy, so that
    /// nothing later would tell that one rank trains in another precision.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`] on all ranks, where the policies differ; what [`ProcessGroup::all_gather_bytes`] returns.
    #[track_caller]
    pub fn check_ranks(&self, group: &ProcessGroup) -> Result<()> {
        let _site = site::enter();
        let policies = group.all_gather_bytes(self.description().as_bytes())?;
        let Some(rank) = policies.iter().position(|policy| *policy != policies[0]) else { return Ok(()) };
        let [own, first] = [rank, 0].map(|rank| String::from_utf8_lossy(&policies[rank]));
        Err(Error::ModelMismatch {
            rank,
            differences: format!("its autocast policy is {own}, that of rank 0 {first}"),
        })
    }

    fn description(&self) -> String {
        let paths = &self.config.full_precision_paths;
        let kept = if paths.is_empty() { "nothing".into() } else { paths.join(", ") };
        format!("{} with {kept} in full precision", self.precision())
    }
}

struct CastMapper {
    /// Whether the next float tensor is cast.
    cast: std::vec::IntoIter<bool>,
    dtype: FloatDType,
    /// The cast of every parameter so far: tied weights share one.
    done: HashMap<ParamId, Box<dyn Any>>,
}

impl ModuleMapper for CastMapper {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.cast.next().unwrap_or(false) {
            return param;
        }
        let id = param.id;
        let done = self.done.get(&id).and_then(|tensor| tensor.downcast_ref::<Tensor<D>>());
        let cast = match done {
            Some(cast) => cast.clone(),
            None => {
                let cast = cast_to(param.base(), self.dtype);
                self.done.insert(id, Box::new(cast.clone()));
                cast
            }
        };
        Param::initialized(id, cast)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    #[test]
    fn each_parameter_is_cast_once_however_often_it_occurs() {
        let device = Device::flex().autodiff();
        let layer: Linear = LinearConfig::new(2, 2).init(&device);
        let module = vec![layer.clone(), layer.clone(), LinearConfig::new(2, 2).init(&device)];
        let cast = vec![true; 6].into_iter();
        let mut mapper = CastMapper { cast, dtype: FloatDType::BF16, done: HashMap::new() };
        let copy = module.map(&mut mapper);
        assert_eq!(mapper.done.len(), 4);
        assert!(copy.iter().all(|layer| layer.weight.val().dtype() == burn::tensor::DType::BF16));
    }
}
