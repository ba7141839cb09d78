use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// Which normalisation follows each convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NormConfig {
    /// Batch normalisation with the statistics of this process's batch; epsilon 1e-5, momentum 0.1.
    #[default]
    Batch,
}

impl NormConfig {
    /// Makes a norm layer with gamma 1, beta 0, running mean 0 and running variance 1.
    ///
    /// # Panics
    ///
    /// If `num_features` is zero.
    pub fn init(&self, num_features: usize, device: &Device) -> Norm {
        match self {
            // Burn and PyTorch agree on what momentum 0.1 means: the weight of the new batch.
            Self::Batch => Norm::Batch(
                BatchNormConfig::new(num_features).with_epsilon(1e-5).with_momentum(0.1).init(device),
            ),
        }
    }
}

/// The normalisation that follows a convolution.
///
/// Training normalises with the statistics of the batch, whereas evaluation uses the running ones. The running
/// variance is the biased one, PyTorch's is multiplied by `n / (n - 1)` with `n = batch * height * width`.
///
/// `Module` is written by hand because the derive for enums puts the variant's name into every path
/// (`bn1.Batch.gamma`), so that records would no longer match torchvision's keys, nor each other across variants.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Norm {
    /// Statistics of this process's batch.
    Batch(BatchNorm),
}

impl Norm {
    /// Normalises each channel of `input`.
    ///
    /// # Shapes
    ///
    /// - `input`: `[batch, channels, height, width]`
    /// - output: the same
    ///
    /// # Panics
    ///
    /// If the number of channels is not the layer's.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Batch(norm) => norm.forward(input),
        }
    }

    /// Sets gamma to zero, so that a residual block that ends in this layer starts as the identity.
    pub(crate) fn with_zero_gamma(self) -> Self {
        match self {
            Self::Batch(mut norm) => {
                norm.gamma =
                    burn::nn::Initializer::Zeros.init(norm.gamma.lazy_shape(), &norm.gamma.lazy_device());
                Self::Batch(norm)
            }
        }
    }
}

impl Module for Norm {
    fn collect_devices(&self, devices: Devices) -> Devices {
        match self {
            Self::Batch(norm) => norm.collect_devices(devices),
        }
    }

    fn fork(self, device: &Device) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.fork(device)),
        }
    }

    fn to_device(self, device: &Device) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.to_device(device)),
        }
    }

    fn train(self) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.train()),
        }
    }

    fn valid(&self) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.valid()),
        }
    }

    fn materialize(self) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.materialize()),
        }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        match self {
            Self::Batch(norm) => norm.visit(visitor),
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        match self {
            Self::Batch(norm) => Self::Batch(norm.map(mapper)),
        }
    }
}

impl ModuleDisplayDefault for Norm {
    fn content(&self, content: Content) -> Option<Content> {
        match self {
            Self::Batch(norm) => content.add_single(norm).optional(),
        }
    }
}

impl ModuleDisplay for Norm {}
