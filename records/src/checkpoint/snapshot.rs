//! What a training holds at one moment, taken without copying a value.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::store::burn_pack;
use burn::tensor::{Shape, Tensor};

use super::state::TrainingState;
use crate::Names;
use crate::write::collect::collect;

/// What a training holds at one moment.
///
/// Tensors are values: a step that comes later writes to other memory while this holds on to them. Running statistics are
/// not. Burn keeps them in a cell that clones of a module share, and puts an update into it only when the next one comes.
/// So their values are taken out of the cell here, with the last update in them.
pub(super) struct Snapshot {
    pub(super) model: Vec<burn_pack::Tensor>,
    pub(super) parameters: Parameters,
    pub(super) optimizer: ModuleOptimizer,
    pub(super) state: TrainingState,
}

impl Snapshot {
    pub(super) fn of<M: Module>(model: &M, optimizer: &ModuleOptimizer, state: TrainingState) -> Self {
        // `valid` puts the last update of running statistics in its place, and takes the tensors out of autodiff.
        let model = model.valid();
        Self {
            model: collect(&model, Names::Burn),
            parameters: Parameters::of(&model),
            optimizer: optimizer.clone(),
            state,
        }
    }

    pub(super) fn step(&self) -> u64 {
        self.state.step
    }
}

/// A float parameter of a model, as an optimizer knows it.
pub(super) struct Parameter {
    pub(super) path: String,
    pub(super) shape: Shape,
}

/// The float parameters of a model by their ids, which are the keys of an optimizer's state.
#[derive(Default)]
pub(super) struct Parameters {
    path: Vec<String>,
    by_id: BTreeMap<u64, Parameter>,
}

impl Parameters {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut parameters = Self::default();
        model.visit(&mut parameters);
        parameters
    }

    pub(super) fn get(&self, id: u64) -> Option<&Parameter> {
        self.by_id.get(&id)
    }
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    // The shape in use, which is that of the gradient, whatever the layout in a file is.
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let parameter = Parameter { path: self.path.join("."), shape: param.val().shape() };
        self.by_id.insert(param.id.val(), parameter);
    }
}
