//! Which float tensors of a module are cast, found out by visiting it.

use std::collections::{BTreeSet, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};

use super::Precision;
use super::policy::{Treatment, is_layer, nearest, path_matches, treatment};
use crate::error::{Error, Result};
use crate::sync_batch_norm;

/// What is done with a module's float tensors.
pub(super) struct Plan {
    /// Whether each is cast, in visit order.
    pub(super) cast: Vec<bool>,
    /// The containers that hold those that are cast.
    pub(super) containers: BTreeSet<String>,
}

/// Whether each of the `kept` paths names something in `module`.
///
/// # Errors
/// [`Error::AutocastPath`].
pub(super) fn check_paths<M: Module>(module: &M, kept: &[String]) -> Result<()> {
    let mut floats = Floats::default();
    module.visit(&mut floats);
    floats.check_paths(kept)
}

/// Plans for `module` in a half precision; `kept` paths stay in f32.
///
/// # Errors
/// [`Error::AutocastPath`], [`Error::AutocastLayer`].
pub(super) fn plan<M: Module>(module: &M, precision: Precision, kept: &[String]) -> Result<Plan> {
    let mut floats = Floats::default();
    module.visit(&mut floats);
    floats.check_paths(kept)?;
    let treatments = floats.treatments(precision, kept);
    floats.check_layers(&treatments, precision)?;
    let mut cast: Vec<bool> = treatments.iter().map(|treatment| *treatment == Treatment::Cast).collect();
    // A frozen parameter looks like a running statistic to a visitor, but only the former may be cast: mapping a
    // running statistic writes through to the original module.
    if floats.entries.iter().zip(&cast).any(|(float, cast)| *cast && !float.trainable) {
        for (cast, parameter) in cast.iter_mut().zip(parameters(module)) {
            *cast &= parameter;
        }
    }
    let cast_floats = floats.entries.iter().zip(&cast).filter(|(_, cast)| **cast);
    let containers = cast_floats.flat_map(|(float, _)| float.containers.iter().cloned()).collect();
    Ok(Plan { cast, containers })
}

/// Whether the policy applies to a type: as in torch not to f64, which someone chose for its precision.
pub(super) fn is_castable(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Flex32 | DType::F16 | DType::BF16)
}

/// A float parameter or running statistic.
struct Float {
    path: Vec<String>,
    /// The type of what holds each component of `path`.
    containers: Vec<String>,
    trainable: bool,
    dtype: DType,
}

impl Float {
    fn name(&self) -> String {
        self.path.join(".")
    }

    fn is_named(&self, patterns: &[String]) -> bool {
        let name = self.name();
        patterns.iter().any(|pattern| path_matches(pattern, &name))
    }

    /// The path of the layer of burn-nn that holds it.
    fn burn_layer(&self) -> Option<&[String]> {
        let container = self.containers.last()?;
        is_layer(container).then(|| &self.path[..self.path.len() - 1])
    }

    /// The outermost layer with a rule: its path's length and its treatment.
    fn layer(&self, precision: Precision) -> Option<(usize, Treatment)> {
        let mut containers = self.containers.iter().enumerate();
        containers.find_map(|(depth, container)| Some((depth, treatment(container, precision)?)))
    }
}

#[derive(Default)]
struct Floats {
    path: Vec<String>,
    containers: Vec<String>,
    entries: Vec<Float>,
    sync_batch_norms: HashSet<Vec<String>>,
}

impl ModuleVisitor for Floats {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == sync_batch_norm::CONTAINER {
            self.sync_batch_norms.insert(self.path.clone());
        }
        self.path.push(name.into());
        self.containers.push(container_type.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        self.entries.push(Float {
            path: self.path.clone(),
            containers: self.containers.clone(),
            // A hooked parameter is no leaf.
            trainable: tensor.is_require_grad() || tensor.is_tracked(),
            dtype: tensor.dtype(),
        });
    }
}

impl Floats {
    fn check_paths(&self, kept: &[String]) -> Result<()> {
        let names: Vec<String> = self.entries.iter().map(Float::name).collect();
        for pattern in kept {
            if !names.iter().any(|name| path_matches(pattern, name)) {
                let nearest = nearest(pattern, names.iter().map(String::as_str));
                return Err(Error::AutocastPath { pattern: pattern.clone(), nearest });
            }
        }
        Ok(())
    }

    fn treatments(&self, precision: Precision, kept: &[String]) -> Vec<Treatment> {
        let named: Vec<bool> = self.entries.iter().map(|float| float.is_named(kept)).collect();
        let floats = self.entries.iter().zip(&named);
        let kept_layers: HashSet<&[String]> =
            floats.filter(|(_, named)| **named).filter_map(|(float, _)| float.burn_layer()).collect();
        let treat = |(float, named): (&Float, &bool)| {
            let in_kept_layer = float.burn_layer().is_some_and(|layer| kept_layers.contains(layer));
            if !is_castable(float.dtype) || *named || in_kept_layer {
                return Treatment::Keep;
            }
            match float.layer(precision) {
                Some((depth, _)) if self.sync_batch_norms.contains(&float.path[..depth]) => Treatment::Keep,
                Some((_, treatment)) => treatment,
                None => Treatment::Cast,
            }
        };
        self.entries.iter().zip(&named).map(treat).collect()
    }

    fn check_layers(&self, treatments: &[Treatment], precision: Precision) -> Result<()> {
        let mut refused = self.entries.iter().zip(treatments).filter_map(|(float, treatment)| {
            let Treatment::Refuse(remedy) = treatment else { return None };
            let (depth, _) = float.layer(precision)?;
            Some((float.path[..depth].join("."), float.containers[depth].clone(), *remedy))
        });
        let Some((path, container, remedy)) = refused.next() else { return Ok(()) };
        let others: BTreeSet<String> =
            refused.map(|(other, ..)| other).filter(|other| *other != path).collect();
        let layer = container.trim_start_matches("Struct:").into();
        Err(Error::AutocastLayer { layer, path, others: others.len(), precision, remedy })
    }
}

/// Of each float tensor of `module`, in visit order, whether it is a parameter, as opposed to a running statistic.
///
/// A parameter can be made to require gradients by a mapper, whereas a running statistic refuses: the one difference
/// between them that a visitor can see. The values stay as they are.
fn parameters<M: Module>(module: &M) -> Vec<bool> {
    // `train` gives running statistics a place of their own and everything an autodiff device.
    let is_plain = module.devices().iter().all(|device| !device.is_autodiff());
    let module = if is_plain { module.clone().train() } else { module.clone() };
    let mut floats = Floats::default();
    module.map(&mut Unfreeze).visit(&mut floats);
    floats.entries.into_iter().map(|float| float.trainable).collect()
}

struct Unfreeze;

impl ModuleMapper for Unfreeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = param.base();
        if tensor.is_require_grad() || tensor.is_tracked() || !tensor.is_autodiff() {
            return param;
        }
        Param::initialized(param.id, tensor.detach().require_grad())
    }
}
