//! Stochastic gradient descent as image classification uses it.

use burn::grad_clipping::GradientClipping;
use burn::module::ParamGroup;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};

const MOMENTUM: f64 = 0.9;

/// SGD with Nesterov momentum 0.9, and an L2 penalty on weights but not on norms and biases.
///
/// Source: Goyal et al., "Accurate, Large Minibatch SGD"; He et al., "Bag of Tricks for Image Classification"
/// (arXiv:1812.01187), section 3.1 (no bias decay).
pub fn sgd(weight_decay: f64) -> ModuleOptimizer {
    // Burn's default dampening is 0.1; PyTorch's, and the papers', is none.
    let momentum = MomentumConfig::new().with_momentum(MOMENTUM).with_dampening(0.0).with_nesterov(true);
    let plain = SgdConfig::new().with_momentum(Some(momentum));
    let optimizer = ModuleOptimizer::from(plain.build());
    if weight_decay == 0.0 {
        return optimizer;
    }
    let decayed = plain.with_weight_decay(Some(WeightDecayConfig::new(weight_decay as f32)));
    let no_clipping: Option<GradientClipping> = None;
    // Norms call their parameters gamma and beta.
    optimizer.with_group(ParamGroup::from_predicate("weight"), decayed.build(), no_clipping)
}
