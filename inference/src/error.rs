use std::path::PathBuf;

use crate::EngineKind;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a network cannot be read, changed or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; check the path and its permissions", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are no ONNX file that can be used here: foreign, truncated, or larger than they may be.
    #[error("this is no usable ONNX file: {reason}; {remedy}")]
    Format {
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The network is no image classifier: its inputs and outputs are others than one `[batch, channels, height, width]`
    /// and one `[batch, classes]`, both f32.
    #[error(
        "the network is no image classifier: {reason}; export one with an input [batch, channels, height, width] and an output [batch, classes] of f32"
    )]
    Signature {
        /// What it has instead.
        reason: String,
    },
    /// The engine has no such operation, or not with these attributes.
    #[error("{engine} cannot run node `{node}` ({operation}): {reason}; choose another engine")]
    Unsupported {
        /// The engine.
        engine: EngineKind,
        /// The node's name, or its place in the graph where it has none.
        node: String,
        /// Its operation, such as `Conv`.
        operation: String,
        /// What of it is not supported.
        reason: String,
    },
    /// The engine is not on this machine.
    #[error("{engine} is not available: {reason}")]
    Unavailable {
        /// The engine.
        engine: EngineKind,
        /// What was tried, and how to install it.
        reason: String,
    },
    /// The engine failed.
    #[error("{engine} failed to {action}: {reason}")]
    Engine {
        /// The engine.
        engine: EngineKind,
        /// What it was doing, such as `load the network`.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// The values given are not those of a batch of images of the network's size.
    #[error("{values} values are no batch of {batch} images of {image} values each")]
    Shape {
        /// How many were given.
        values: usize,
        /// The images that were said.
        batch: usize,
        /// `channels * height * width`.
        image: usize,
    },
    /// The network was exported for batches of one size, and this is another.
    #[error("the network takes batches of {fixed} alone, not of {batch}; export it with a free batch axis")]
    Batch {
        /// The images that were said.
        batch: usize,
        /// Those that it takes.
        fixed: usize,
    },
    /// A weight cannot be told in the smaller type.
    #[error("weight `{tensor}` cannot be stored as {weights}: {reason}; keep f32 weights")]
    Weights {
        /// The tensor's name in the file.
        tensor: String,
        /// The type.
        weights: crate::WeightType,
        /// Why.
        reason: String,
    },
}
