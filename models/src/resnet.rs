use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::activation::relu;
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{Tensor, assert_shape};
use burn_nccl::SyncBatchNorm;

use crate::block::Block;

/// A residual network for image classification, made by [`ResNetConfig::init`](crate::ResNetConfig::init).
///
/// Field names are torchvision's. Source: He et al., "Deep Residual Learning for Image Recognition"
/// (arXiv:1512.03385); torchvision `models/resnet.py`.
#[derive(Module, Debug)]
pub struct ResNet {
    /// First convolution of the stem.
    pub conv1: Conv2d,
    /// After `conv1`, before a ReLU.
    pub bn1: SyncBatchNorm,
    /// Pooling of the ImageNet stem.
    pub maxpool: Option<MaxPool2d>,
    /// First stage, at the resolution of the stem.
    pub layer1: Vec<Block>,
    /// Second stage, at half the resolution.
    pub layer2: Vec<Block>,
    /// Third stage, at a quarter.
    pub layer3: Vec<Block>,
    /// Fourth stage, at an eighth.
    pub layer4: Vec<Block>,
    /// The classifier.
    pub fc: Linear,
}

impl ResNet {
    /// Computes the logits, one row an image; no softmax.
    ///
    /// # Shapes
    ///
    /// - `images`: `[batch, input_channels, height, width]`, any height and width of at least 1
    /// - output: `[batch, num_classes]`
    ///
    /// # Panics
    ///
    /// As [`forward_features`](Self::forward_features).
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features = self.forward_features(images);
        // [batch, features, h, w] -> [batch, features, 1, 1] -> [batch, features]
        self.fc.forward(adaptive_avg_pool2d(features, [1, 1]).flatten(1, 3))
    }

    /// Computes the feature map that [`forward`](Self::forward) averages over its positions.
    ///
    /// Each halving rounds up and every convolution is padded, so no image is too small: below 33 pixels (9
    /// with the CIFAR stem) the map has one position. Training on a batch of one such image is refused, as by
    /// PyTorch: batch normalisation of a single value gives beta whatever the value was.
    ///
    /// # Shapes
    ///
    /// - `images`: `[batch, input_channels, height, width]`
    /// - output: `[batch, features, ceil(height / 32), ceil(width / 32)]`; 8 in place of 32 with the CIFAR stem
    ///
    /// # Panics
    ///
    /// If the number of channels is not `input_channels`; in training, for a single value per channel.
    pub fn forward_features(&self, images: Tensor<4>) -> Tensor<4> {
        let [_, input_channels, _, _] = self.conv1.weight.lazy_shape().dims();
        assert_shape!(images, [_, input_channels, _, _]);

        let x = relu(self.bn1.forward(self.conv1.forward(images)));
        let x = match &self.maxpool {
            Some(maxpool) => maxpool.forward(x),
            None => x,
        };
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        stages.into_iter().flatten().fold(x, |x, block| block.forward(x))
    }

    /// Number of trainable values, as papers and torchvision count them.
    ///
    /// [`Module::num_params`] also counts the running statistics.
    pub fn parameters_count(&self) -> usize {
        let mut counter = ParameterCounter::default();
        self.visit(&mut counter);
        counter.count
    }
}

/// Sums the sizes of all tensors but the running statistics, which Burn visits as parameters.
#[derive(Default)]
struct ParameterCounter {
    in_running_statistic: bool,
    count: usize,
}

impl ModuleVisitor for ParameterCounter {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.in_running_statistic = matches!(name, "running_mean" | "running_var");
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.in_running_statistic {
            self.count += param.lazy_shape().num_elements();
        }
    }
}
