//! A small model whose every forward, loss and step is spelled out.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};

pub(crate) const FEATURES: usize = 5;

/// Three layers, of which `branch` is used on request only.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) first: Linear,
    pub(crate) branch: Linear,
    pub(crate) last: Linear,
}

impl Net {
    /// Weights from a formula, so that every rank and the reference hold the same.
    pub(crate) fn new(device: &Device) -> Self {
        let layer = |inputs: usize, outputs: usize, phase: f32| {
            let layer = LinearConfig::new(inputs, outputs).init(device);
            let weight: Vec<f32> =
                (0..inputs * outputs).map(|i| (i as f32 * 0.7 + phase).sin() * 0.5).collect();
            let bias: Vec<f32> = (0..outputs).map(|i| (i as f32 + phase).cos() * 0.1).collect();
            let weight = Tensor::from_data(TensorData::new(weight, [inputs, outputs]), device).require_grad();
            let bias = Tensor::from_data(TensorData::new(bias, [outputs]), device).require_grad();
            Linear { weight: layer.weight.map(|_| weight), bias: layer.bias.map(|param| param.map(|_| bias)) }
        };
        Self { first: layer(FEATURES, 8, 0.1), branch: layer(8, 8, 0.2), last: layer(8, 2, 0.3) }
    }

    pub(crate) fn no_grad_branch(self) -> Self {
        Self { branch: self.branch.no_grad(), ..self }
    }

    pub(crate) fn forward(&self, input: Tensor<2>, with_branch: bool) -> Tensor<2> {
        let mut x = tanh(self.first.forward(input));
        if with_branch {
            x = x.clone() + tanh(self.branch.forward(x));
        }
        self.last.forward(x)
    }

    /// The mean over rows and outputs of the squared output.
    pub(crate) fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        self.forward(input, true).powi_scalar(2).mean()
    }
}

/// Rows `start..end` of an endless table.
pub(crate) fn rows(start: usize, end: usize, device: &Device) -> Tensor<2> {
    let table: Vec<f32> = (start * FEATURES..end * FEATURES).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::from_data(TensorData::new(table, [end - start, FEATURES]), device)
}

pub(crate) fn optimizer() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9))).init()
}

/// What one process computes that holds all rows of a step, for `steps` steps of `per_step` rows.
pub(crate) fn alone(device: &Device, steps: usize, per_step: usize) -> Vec<f32> {
    let (mut net, mut optimizer) = (Net::new(device), optimizer());
    for step in 0..steps {
        let loss = net.loss(rows(step * per_step, (step + 1) * per_step, device));
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.1, net, gradients);
    }
    parameters(&net)
}

/// Every parameter in visit order.
pub(crate) fn parameters(module: &impl Module) -> Vec<f32> {
    struct Collect(Vec<f32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(crate::values(param.val().inner()));
        }
    }
    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}
