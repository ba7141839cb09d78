use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::store::bridge;
use burn::store::burn_pack;
use burn::tensor::{Bool, Int, Tensor};

use super::storage::Storage;
use crate::names::{Names, declared_in, torch_name};

/// Every parameter of `module`, which is one without autodiff (`valid`), under the name and in the layout that `names` say.
/// Nothing is read or copied.
pub(crate) fn collect<M: Module>(module: &M, names: Names) -> Vec<burn_pack::Tensor> {
    let mut collector = Collector { names, path: Vec::new(), containers: Vec::new(), tensors: Vec::new() };
    module.visit(&mut collector);
    collector.tensors
}

struct Collector {
    names: Names,
    path: Vec<String>,
    /// The type of each module on the way down, as Burn's derive names it: `Struct:Linear`, `Vec`, `Enum:Block`.
    containers: Vec<String>,
    tensors: Vec<burn_pack::Tensor>,
}

impl Collector {
    fn declared_in(&self) -> &str {
        declared_in(self.containers.iter().map(String::as_str))
    }

    fn name(&self) -> String {
        let Some((field, path)) = self.path.split_last() else { return String::new() };
        let field = match self.names {
            Names::Burn => field,
            Names::Torch => torch_name(self.declared_in(), field),
        };
        path.iter().map(String::as_str).chain([field]).collect::<Vec<_>>().join(".")
    }

    fn add<const D: usize, K: Storage>(&mut self, id: ParamId, tensor: Tensor<D, K>) {
        let tensor = tensor.inner();
        let tensor = match self.names {
            Names::Torch if D == 2 && self.declared_in() == "Struct:Linear" => tensor.swap_dims(0, 1),
            _ => tensor,
        };
        let id = Some(id.val());
        self.tensors.push(match K::host_bytes(&tensor) {
            Some(bytes) => burn_pack::Tensor::new(self.name(), tensor.dtype(), tensor.shape(), id, bytes),
            None => bridge::from_tensor(&tensor, self.name(), id),
        });
    }
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.containers.push(container_type.into());
        // PyTorch has no enums: what a variant holds is simply there.
        if self.names == Names::Burn || !container_type.starts_with("Enum:") {
            self.path.push(name.into());
        }
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        self.containers.pop();
        if self.names == Names::Burn || !container_type.starts_with("Enum:") {
            self.path.pop();
        }
    }

    // The form that a load undoes: what lies in the parameter may have another layout.
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, param.transform_for_save().val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, param.transform_for_save().val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, param.transform_for_save().val());
    }
}
