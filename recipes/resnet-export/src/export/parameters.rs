//! The parameters of a module with their paths.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// What looks at the parameters that hold numbers with a fraction: weights, and the statistics of normalisations.
pub(super) trait Look {
    /// Looks at the parameter at `path`, such as `layer1.0.conv1.weight`.
    fn look<const D: usize>(&mut self, path: &str, param: &Param<Tensor<D>>);
}

/// Shows all parameters of `module` to `look`, in the module's order.
pub(super) fn visit(module: &impl Module, look: &mut impl Look) {
    module.visit(&mut Visitor { path: Vec::new(), look });
}

struct Visitor<'a, L> {
    path: Vec<String>,
    look: &'a mut L,
}

impl<L: Look> ModuleVisitor for Visitor<'_, L> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.look.look(&self.path.join("."), param);
    }
}
