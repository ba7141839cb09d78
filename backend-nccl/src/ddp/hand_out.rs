//! Reduced gradients, as Burn's optimizers take them.

use std::collections::HashSet;
use std::vec::IntoIter;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};

use super::reducer::Reduced;
use super::storage::Averaged;

/// Hands the reduced gradients out under the ids of `model`'s parameters.
pub(crate) fn gradients<M: Module>(model: &M, reduced: Reduced) -> GradientsParams {
    let mut visitor = HandOut {
        reduced: reduced.gradients.into_iter(),
        seen: Default::default(),
        gradients: GradientsParams::new(),
    };
    model.visit(&mut visitor);
    visitor.gradients
}

struct HandOut {
    /// In the order in which the trainable parameters are visited.
    reduced: IntoIter<Option<Averaged>>,
    seen: HashSet<ParamId>,
    gradients: GradientsParams,
}

impl ModuleVisitor for HandOut {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        if !tensor.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        let gradient: Tensor<D> = match self.reduced.next().flatten() {
            None => return,
            Some(Averaged::Bytes(bytes)) => {
                let data = TensorData::from_bytes(bytes, tensor.shape(), tensor.dtype());
                Tensor::from_data(data, (&tensor.device().without_autodiff(), tensor.dtype()))
            }
            Some(Averaged::Tensor(flat)) => flat.reshape(tensor.shape()),
        };
        self.gradients.register(param.id, gradient);
    }
}
