//! The values of a model, to compare ranks and runs.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use sha2::{Digest, Sha256};

/// All parameters and running statistics of `model` in visit order.
pub fn parameters<M: Module>(model: &M) -> Vec<f64> {
    // Running statistics are kept one update behind; `valid` brings them up to date.
    let mut collect = Collect(Vec::new());
    model.valid().visit(&mut collect);
    collect.0
}

/// SHA-256 of [`parameters`] as little-endian f32, in hexadecimal.
pub fn sha256<M: Module>(model: &M) -> String {
    let mut hash = Sha256::new();
    for value in parameters(model) {
        hash.update((value as f32).to_le_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Collect(Vec<f64>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().iter::<f64>());
    }
}
