use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_nccl::SyncBatchNorm;

use crate::norm::with_zero_gamma;
use crate::pointwise::convolve;
use crate::{NormConfig, ResNetConfig};

/// A residual block: two 3x3 convolutions (ResNet-18 and 34), or 1x1, 3x3, 1x1 (the bottleneck of 50, 101, 152).
///
/// The stride of a bottleneck sits on its 3x3 convolution. The paper has it on the first 1x1; torchvision and
/// everyone since ("v1.5") move it for about 0.5 points of accuracy.
///
/// One struct serves both kinds, since an enum would put its variant's name into each record path. Source:
/// torchvision `models/resnet.py`, `BasicBlock` and `Bottleneck`.
#[derive(Module, Debug)]
pub struct Block {
    /// 3x3 with the block's stride, or the reducing 1x1 of a bottleneck.
    pub conv1: Conv2d,
    /// After `conv1`, before a ReLU.
    pub bn1: SyncBatchNorm,
    /// 3x3; carries the block's stride in a bottleneck.
    pub conv2: Conv2d,
    /// After `conv2`.
    pub bn2: SyncBatchNorm,
    /// The expanding 1x1 of a bottleneck.
    pub conv3: Option<Conv2d>,
    /// After `conv3`.
    pub bn3: Option<SyncBatchNorm>,
    /// 1x1 convolution and norm on the shortcut where the block changes the shape; a tuple, since torchvision
    /// names its parts `downsample.0` and `downsample.1`.
    pub downsample: Option<(Conv2d, SyncBatchNorm)>,
}

/// Where a block stands in its network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockShape {
    pub(crate) channels_in: usize,
    /// Channels of the 3x3 convolutions.
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl Block {
    pub(crate) fn new(shape: BlockShape, config: &ResNetConfig, device: &Device) -> Self {
        let BlockShape { channels_in, width, stride } = shape;
        let bottleneck = config.depth.is_bottleneck();
        let channels_out = width * config.depth.expansion();
        let norm = |channels| config.norm.init(channels, device);
        let last_norm = |channels| last_norm(config.norm, channels, config.zero_init_residual, device);

        let (conv1, conv2, bn2) = if bottleneck {
            (conv(channels_in, width, 1, 1, device), conv(width, width, 3, stride, device), norm(width))
        } else {
            (conv(channels_in, width, 3, stride, device), conv(width, width, 3, 1, device), last_norm(width))
        };
        Self {
            conv1,
            bn1: norm(width),
            conv2,
            bn2,
            conv3: bottleneck.then(|| conv(width, channels_out, 1, 1, device)),
            bn3: bottleneck.then(|| last_norm(channels_out)),
            downsample: (stride != 1 || channels_in != channels_out)
                .then(|| (conv(channels_in, channels_out, 1, stride, device), norm(channels_out))),
        }
    }

    /// Adds the block's residual to its shortcut.
    ///
    /// # Shapes
    ///
    /// - `input`: `[batch, channels_in, height, width]`
    /// - output: `[batch, channels_out, ceil(height / stride), ceil(width / stride)]`
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(convolve(conv, input.clone())),
            None => input.clone(),
        };
        let x = relu(self.bn1.forward(convolve(&self.conv1, input)));
        let x = self.bn2.forward(convolve(&self.conv2, x));
        let x = match (&self.conv3, &self.bn3) {
            (Some(conv3), Some(bn3)) => bn3.forward(convolve(conv3, relu(x))),
            _ => x,
        };
        relu(x + shortcut)
    }
}

fn last_norm(
    config: NormConfig,
    channels: usize,
    zero_init_residual: bool,
    device: &Device,
) -> SyncBatchNorm {
    let norm = config.init(channels, device);
    if zero_init_residual { with_zero_gamma(norm) } else { norm }
}

/// A convolution without bias that keeps height and width at stride 1, initialised as torchvision's:
/// normal with standard deviation `sqrt(2 / (channels_out * kernel²))`.
pub(crate) fn conv(
    channels_in: usize,
    channels_out: usize,
    kernel: usize,
    stride: usize,
    device: &Device,
) -> Conv2d {
    let pad = kernel / 2;
    Conv2dConfig::new([channels_in, channels_out], [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: std::f64::consts::SQRT_2, fan_out_only: true })
        .init(device)
}
