//! A network as this engine sees it: a few operations on images of known size.

mod attributes;
mod constant;
mod lower;
mod reader;
mod sizes;
mod window;

pub(super) use constant::Constant;
pub(super) use reader::{failed, read};
pub(super) use window::Window;

use super::kernel::Activation;
use super::simd::LANES;
use crate::onnx::clipped;
use crate::{EngineKind, Error};

/// The network's input: the first value of every graph.
pub(super) const INPUT: usize = 0;

/// Most values of one image that an operation may give: 1 GiB. A file of a few bytes can ask for any number.
const MAX_IMAGE_VALUES: usize = 1 << 28;

/// A network, its nodes in the order in which they run.
pub(super) struct Graph<'a> {
    /// The shape of every value; the first is the input.
    pub(super) values: Vec<Shape>,
    pub(super) nodes: Vec<Node<'a>>,
    /// The value that is the logits.
    pub(super) output: usize,
}

/// The shape of one image of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Shape {
    /// A shape, or why it cannot be had.
    pub(super) fn new(channels: usize, height: usize, width: usize) -> Result<Self, String> {
        let padded = channels.checked_next_multiple_of(LANES);
        let values = padded.and_then(|padded| padded.checked_mul(height)?.checked_mul(width));
        match values {
            Some(1..=MAX_IMAGE_VALUES) => Ok(Self { channels, height, width }),
            _ => Err(format!("an image of {channels} x {height} x {width} values is empty or too large")),
        }
    }

    /// Blocks of channels.
    pub(super) fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }

    /// Pixels of a channel.
    pub(super) fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Values of an image whose channels are blocked, `[blocks, height, width, LANES]`.
    pub(super) fn blocked_values(&self) -> usize {
        self.blocks() * self.pixels() * LANES
    }
}

/// One operation.
pub(super) struct Node<'a> {
    /// What errors call it.
    pub(super) label: Label,
    pub(super) op: Op<'a>,
    /// The values that it reads.
    pub(super) inputs: Vec<usize>,
    /// The value that it makes.
    pub(super) output: usize,
}

/// What errors call a node.
#[derive(Clone, Debug)]
pub(super) struct Label {
    node: String,
    operation: String,
}

impl Label {
    /// That of a node; names come from the file, and are cut where they are long.
    pub(super) fn new(node: String, operation: String) -> Self {
        Self { node: clipped(node), operation: clipped(operation) }
    }

    /// The node is not supported, for this reason.
    pub(super) fn unsupported(&self, reason: impl Into<String>) -> Error {
        Error::Unsupported {
            engine: EngineKind::Native,
            node: self.node.clone(),
            operation: self.operation.clone(),
            reason: clipped(reason.into()),
        }
    }
}

/// What a node does.
pub(super) enum Op<'a> {
    /// A convolution; a second input is added to its sums.
    Conv(Conv<'a>),
    /// `x * scale + shift`, by channel.
    Affine(Affine),
    /// Bounds.
    Bound(Activation),
    /// The sum of two values.
    Add(Option<Activation>),
    /// The largest or mean value under a window.
    Pool(Pool),
    /// The mean of each channel.
    GlobalAverage,
    /// Pixels become channels, `[channels, height, width]` in this order.
    Flatten,
}

/// A convolution, or a product with a matrix, which is one of images of one pixel.
pub(super) struct Conv<'a> {
    pub(super) weight: Constant<'a>,
    pub(super) order: WeightOrder,
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) groups: usize,
    pub(super) window: Window,
    /// What the weights of each output channel are multiplied by.
    pub(super) scale: Vec<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) activation: Option<Activation>,
}

/// How the weights lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightOrder {
    /// `[out, in / groups, height, width]`.
    OutFirst,
    /// `[in, out]`.
    InFirst,
}

/// `x * scale + shift`, by channel.
pub(super) struct Affine {
    pub(super) scale: Vec<f64>,
    pub(super) shift: Vec<f64>,
    pub(super) activation: Option<Activation>,
}

/// A window that moves over the image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) window: Window,
    pub(super) kind: PoolKind,
}

/// What is taken of the values under the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    Max,
    /// The mean; zeros of the padding count where `padding` says so.
    Average {
        padding: bool,
    },
}
