use std::fmt;
use std::str::FromStr;

use burn::config::Config;
use burn::nn::LinearConfig;
use burn::nn::PaddingConfig2d;
use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::Device;
use burn_nccl_records::Architecture;
use serde::{Deserialize, Serialize};

use crate::block::{Block, BlockShape, conv};
use crate::{ModelError, NormConfig, ResNet};

/// Channels after the stem, and of the 3x3 convolutions in the first stage.
const STEM_CHANNELS: usize = 64;

/// More classes or channels than any network has, and few enough that no size of a weight overflows.
const MAX_SIZE: usize = 1 << 24;

/// Number of layers with weights, which names the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// 11.7 M parameters with 1000 classes.
    ResNet18,
    /// 21.8 M parameters with 1000 classes.
    ResNet34,
    /// 25.6 M parameters with 1000 classes.
    ResNet50,
    /// 44.5 M parameters with 1000 classes.
    ResNet101,
    /// 60.2 M parameters with 1000 classes.
    ResNet152,
}

impl Depth {
    /// Every depth, shallow to deep.
    pub const ALL: [Self; 5] =
        [Self::ResNet18, Self::ResNet34, Self::ResNet50, Self::ResNet101, Self::ResNet152];

    /// Residual blocks in each of the four stages.
    ///
    /// Source: He et al., "Deep Residual Learning for Image Recognition", table 1.
    pub const fn blocks(self) -> [usize; 4] {
        match self {
            Self::ResNet18 => [2, 2, 2, 2],
            Self::ResNet34 | Self::ResNet50 => [3, 4, 6, 3],
            Self::ResNet101 => [3, 4, 23, 3],
            Self::ResNet152 => [3, 8, 36, 3],
        }
    }

    /// Whether blocks are bottlenecks (three convolutions) rather than basic (two).
    pub const fn is_bottleneck(self) -> bool {
        matches!(self, Self::ResNet50 | Self::ResNet101 | Self::ResNet152)
    }

    /// Channels that leave a block per channel of its 3x3 convolution.
    pub(crate) const fn expansion(self) -> usize {
        if self.is_bottleneck() { 4 } else { 1 }
    }

    /// The name torchvision and the command line use, such as `resnet50`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ResNet18 => "resnet18",
            Self::ResNet34 => "resnet34",
            Self::ResNet50 => "resnet50",
            Self::ResNet101 => "resnet101",
            Self::ResNet152 => "resnet152",
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Depth {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        Self::ALL
            .into_iter()
            .find(|depth| depth.name() == name)
            .ok_or_else(|| ModelError::UnknownDepth { name: name.into() })
    }
}

/// The layers before the first residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// 7x7 convolution of stride 2 and 3x3 max pooling of stride 2: height and width shrink by 4.
    ImageNet,
    /// 3x3 convolution of stride 1, no pooling: for images of about 32 pixels.
    Cifar,
}

impl Stem {
    /// The name on the command line: `imagenet` or `cifar`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ImageNet => "imagenet",
            Self::Cifar => "cifar",
        }
    }
}

impl fmt::Display for Stem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Stem {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        [Self::ImageNet, Self::Cifar]
            .into_iter()
            .find(|stem| stem.name() == name)
            .ok_or_else(|| ModelError::UnknownStem { name: name.into() })
    }
}

/// What a [`ResNet`] is made of; saved as JSON beside a run, it rebuilds the network that its record fits.
#[derive(Config, Debug, PartialEq)]
pub struct ResNetConfig {
    /// Which network of the family.
    pub depth: Depth,
    /// Number of logits; at least 1.
    pub num_classes: usize,
    /// The layers before the first block.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// The normalisation after each convolution.
    #[config(default = "NormConfig::Batch")]
    pub norm: NormConfig,
    /// Starts each residual block as the identity by a zero gamma in its last norm, which helps large batches.
    /// Source: Goyal et al., "Accurate, Large Minibatch SGD", section 5.1.
    #[config(default = false)]
    pub zero_init_residual: bool,
    /// Channels of the input images; at least 1.
    #[config(default = 3)]
    pub input_channels: usize,
}

impl ResNetConfig {
    /// Channels of the last feature map, which is what the classifier sees: 512, or 2048 with bottlenecks.
    pub fn num_features(&self) -> usize {
        (STEM_CHANNELS << 3) * self.depth.expansion()
    }

    /// Makes a network with torchvision's initialisation.
    ///
    /// Convolutions draw from a normal distribution by fan-out (He et al. 2015), the classifier from
    /// `U(-k, k)` with `k = 1 / sqrt(features)`; norm layers start with gamma 1 and beta 0. Burn draws a
    /// parameter when it is first used.
    ///
    /// # Panics
    ///
    /// If `num_classes` or `input_channels` is zero.
    pub fn init(&self, device: &Device) -> ResNet {
        assert!(self.num_classes > 0, "num_classes must be at least 1");
        assert!(self.input_channels > 0, "input_channels must be at least 1");

        let (kernel, stride) = match self.stem {
            Stem::ImageNet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let maxpool = (self.stem == Stem::ImageNet).then(|| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding).init()
        });
        ResNet {
            conv1: conv(self.input_channels, STEM_CHANNELS, kernel, stride, device),
            bn1: self.norm.init(STEM_CHANNELS, device),
            maxpool,
            layer1: self.stage(0, device),
            layer2: self.stage(1, device),
            layer3: self.stage(2, device),
            layer4: self.stage(3, device),
            // Burn's default is PyTorch's: uniform within 1 / sqrt(d_input), for weight and bias.
            fc: LinearConfig::new(self.num_features(), self.num_classes).init(device),
        }
    }

    /// The blocks of one stage; all but the first stage halve height and width in their first block.
    fn stage(&self, index: usize, device: &Device) -> Vec<Block> {
        let width = STEM_CHANNELS << index;
        let channels_out = width * self.depth.expansion();
        let first = match index {
            0 => BlockShape { channels_in: STEM_CHANNELS, width, stride: 1 },
            _ => BlockShape { channels_in: channels_out / 2, width, stride: 2 },
        };
        let rest = BlockShape { channels_in: channels_out, width, stride: 1 };
        std::iter::once(first)
            .chain(std::iter::repeat(rest))
            .take(self.depth.blocks()[index])
            .map(|shape| Block::new(shape, self, device))
            .collect()
    }
}

/// Files call it `resnet`, so that `burn_nccl_records::load_model::<ResNetConfig>(path, &device)` needs nothing else.
impl Architecture for ResNetConfig {
    const NAME: &'static str = "resnet";
    type Model = ResNet;

    fn init(&self, device: &Device) -> ResNet {
        self.init(device)
    }

    fn check(&self) -> Result<(), String> {
        for (name, size) in [("num_classes", self.num_classes), ("input_channels", self.input_channels)] {
            if !(1..=MAX_SIZE).contains(&size) {
                return Err(format!("`{name}` is {size}, not from 1 to {MAX_SIZE}"));
            }
        }
        Ok(())
    }
}
