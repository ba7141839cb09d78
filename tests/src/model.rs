//! Small models whose start depends on a formula and not on a random generator.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::data::{CLASSES, IMAGE, noise};

const CHANNELS: usize = 4;

/// Which [`SmallNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Net {
    /// A convolution and a linear layer.
    Plain,
    /// With a frozen batch norm between them, which normalises with its running statistics.
    FrozenNorm,
    /// With a second linear layer, which a step may leave out.
    Branched,
}

/// A convolution, a norm that may be absent, a linear layer and another that may be absent or left out.
#[derive(Module, Debug)]
pub struct SmallNet {
    conv: Conv2d,
    norm: Option<BatchNorm>,
    trunk: Linear,
    branch: Option<Linear>,
}

impl SmallNet {
    /// A net whose values depend on `seed` alone.
    pub fn new(net: Net, seed: u64, device: &Device) -> Self {
        let features = CHANNELS * (IMAGE[1] - 2) * (IMAGE[2] - 2);
        let linear = || LinearConfig::new(features, CLASSES).init(device);
        let model = Self {
            conv: Conv2dConfig::new([IMAGE[0], CHANNELS], [3, 3]).init(device),
            norm: (net == Net::FrozenNorm).then(|| BatchNormConfig::new(CHANNELS).init(device).freeze()),
            trunk: linear(),
            branch: (net == Net::Branched).then(linear),
        };
        fill(model, seed)
    }

    /// Logits `[batch, 3]` of images `[batch, 2, 6, 6]`.
    pub fn forward(&self, images: Tensor<4>, with_branch: bool) -> Tensor<2> {
        let hidden = self.conv.forward(images);
        let hidden = match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        };
        let features = relu(hidden).flatten::<2>(1, 3);
        let logits = self.trunk.forward(features.clone());
        match &self.branch {
            Some(branch) if with_branch => logits + branch.forward(features),
            _ => logits,
        }
    }
}

/// Gives `module` values from a formula: in `[-0.3, 0.3)`, and in `[0.7, 1.3)` where a scale or a variance is meant.
pub fn fill<M: Module>(module: M, seed: u64) -> M {
    module.map(&mut Fill { next: seed << 32, name: String::new() })
}

struct Fill {
    next: u64,
    name: String,
}

impl ModuleMapper for Fill {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.name = name.to_owned();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let centre = if matches!(self.name.as_str(), "gamma" | "running_var") { 1.0 } else { 0.0 };
        let next = &mut self.next;
        param.map(|tensor| {
            let (device, requires_grad) = (tensor.device(), tensor.is_require_grad());
            let values: Vec<f64> = (0..tensor.shape().num_elements())
                .map(|_| {
                    *next += 1;
                    centre + 0.3 * noise(*next)
                })
                .collect();
            let data = TensorData::new(values, tensor.shape());
            Tensor::from_data(data, (&device, tensor.dtype())).set_require_grad(requires_grad)
        })
    }
}
