//! A small network with synchronized batch norm, whose gradients depend smoothly enough on rounding to be compared.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_nccl::{SyncBatchNorm, SyncBatchNormConfig};
use burn_nccl_models::ResNet;

use crate::training::CLASSES;

const CHANNELS: [usize; 3] = [3, 32, 64];

/// What the checks train: logits `[batch, classes]` of images `[batch, 3, height, width]`.
pub(crate) trait Network: Module {
    fn logits(&self, images: Tensor<4>) -> Tensor<2>;
}

impl Network for ResNet {
    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(images)
    }
}

/// Two convolutions of stride 2, each with a norm over all ranks, and a classifier of the mean.
#[derive(Module, Debug)]
pub(crate) struct SmallNet {
    conv1: Conv2d,
    norm1: SyncBatchNorm,
    conv2: Conv2d,
    norm2: SyncBatchNorm,
    classifier: Linear,
}

impl SmallNet {
    pub(crate) fn new(device: &Device) -> Self {
        let conv = |i: usize| {
            let config = Conv2dConfig::new([CHANNELS[i], CHANNELS[i + 1]], [3, 3]);
            config.with_stride([2, 2]).with_bias(false).init(device)
        };
        let norm = |channels| SyncBatchNormConfig::new(channels).init(device);
        Self {
            conv1: conv(0),
            norm1: norm(CHANNELS[1]),
            conv2: conv(1),
            norm2: norm(CHANNELS[2]),
            classifier: LinearConfig::new(CHANNELS[2], CLASSES).with_bias(false).init(device),
        }
    }
}

impl Network for SmallNet {
    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = relu(self.norm1.forward(self.conv1.forward(images)));
        let hidden = relu(self.norm2.forward(self.conv2.forward(hidden)));
        let [rows, channels, height, width] = hidden.dims();
        let mean = hidden.reshape([rows, channels, height * width]).mean_dim(2);
        self.classifier.forward(mean.reshape([rows, channels]))
    }
}
