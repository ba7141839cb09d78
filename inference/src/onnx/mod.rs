//! A checked ONNX file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use tract_onnx::pb::ModelProto;

use crate::Result;

/// An image classifier in ONNX whose structure has been checked.
#[derive(Clone, Debug)]
pub struct Onnx {
    proto: ModelProto,
    signature: Signature,
}

/// What a network takes and gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the input `[batch, channels, height, width]`, f32.
    pub input: String,
    /// Name of the output `[batch, classes]`, f32.
    pub output: String,
    /// The one batch size that it takes; none where it takes any.
    pub batch: Option<usize>,
    /// Channels of an image.
    pub channels: usize,
    /// Height of an image in pixels.
    pub height: usize,
    /// Width of an image in pixels.
    pub width: usize,
    /// Number of classes.
    pub classes: usize,
}

impl Signature {
    /// Values of one image.
    pub fn image_values(&self) -> usize {
        self.channels * self.height * self.width
    }
}

/// How the weights of convolutions and matrix products are stored. Engines compute in f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// As trained.
    #[default]
    F32,
    /// Half the size: a `Cast` widens them when the network is loaded.
    F16,
    /// A quarter of the size: signed, symmetric, with one scale for each output channel; `DequantizeLinear` widens them.
    Int8,
}

impl WeightType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|weights| weights.name() == text)
            .ok_or_else(|| format!("unknown type of weights `{text}`: use f32, f16, int8"))
    }
}

impl Onnx {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// [`Error::Read`](crate::Error::Read); those of [`from_bytes`](Self::from_bytes).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let _ = path;
        todo!("helper B")
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Format`](crate::Error::Format) for what is no ONNX file, one with data outside it, with sizes that do not
    /// fit or with more nodes or larger tensors than a classifier has; [`Error::Signature`](crate::Error::Signature).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let _ = bytes;
        todo!("helper B")
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(&self.proto)
    }

    /// What the network takes and gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The whole file, for the engines.
    pub(crate) fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// Folds each batch normalisation into the convolution before it where that one feeds nothing else, and says how many.
    ///
    /// `BN(conv(x, W) + b) = conv(x, W s) + (b - mean) s + beta` with `s = gamma / sqrt(var + epsilon)`, per output
    /// channel. Source: torch.nn.utils.fusion.fuse_conv_bn_weights.
    ///
    /// # Errors
    ///
    /// [`Error::Format`](crate::Error::Format) for a normalisation whose statistics are no constants of its channels.
    pub fn fold_batch_norms(&mut self) -> Result<usize> {
        todo!("helper B")
    }

    /// Stores the weights of convolutions and matrix products in another type.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`](crate::Error::Weights) for a weight that is not finite, or beyond the range of f16.
    pub fn set_weights(&mut self, weights: WeightType) -> Result<()> {
        let _ = weights;
        todo!("helper B")
    }
}
