//! The parameters of a module as data-parallel training sees them: a fixed, ordered list with names.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor};
use serde::{Deserialize, Serialize};

/// A parameter or running statistic of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParameterInfo {
    /// Field names from the module's root, joined by dots.
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Burn's name of the element type.
    pub(crate) dtype: String,
    /// Whether it receives gradients: neither frozen nor a running statistic.
    pub(crate) trainable: bool,
}

/// A trainable float parameter: what the reducer needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Trainable {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

/// Lists `module`'s parameters in visit order. A parameter that occurs twice (tied weights share their id) is
/// listed once, where it occurs first.
pub(crate) fn list(module: &impl Module) -> (Vec<ParameterInfo>, Vec<Trainable>) {
    let mut collector = Collector::default();
    module.visit(&mut collector);
    (collector.all, collector.trainable)
}

#[derive(Default)]
struct Collector {
    path: Vec<String>,
    seen: HashSet<ParamId>,
    all: Vec<ParameterInfo>,
    trainable: Vec<Trainable>,
}

impl Collector {
    /// Takes a parameter; `device` is that of a trainable one.
    fn push(&mut self, id: ParamId, shape: Vec<usize>, dtype: DType, device: Option<Device>) {
        if !self.seen.insert(id) {
            return;
        }
        let name = self.path.join(".");
        let trainable = device.is_some();
        if let Some(device) = device {
            self.trainable.push(Trainable { name: name.clone(), shape: shape.clone(), dtype, device });
        }
        self.all.push(ParameterInfo { name, shape, dtype: format!("{dtype:?}"), trainable });
    }
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        let device = tensor.is_require_grad().then(|| tensor.device());
        self.push(param.id, tensor.dims().to_vec(), tensor.dtype(), device);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.base();
        self.push(param.id, tensor.dims().to_vec(), tensor.dtype(), None);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.base();
        self.push(param.id, tensor.dims().to_vec(), tensor.dtype(), None);
    }
}
