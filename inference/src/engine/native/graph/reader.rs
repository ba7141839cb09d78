//! Reads the graph of a file.

use std::collections::HashMap;

use tract_onnx::pb::{NodeProto, TensorProto};

use super::sizes::Size;
use super::{Constant, Graph, INPUT, Label, Node, Op, Shape, lower};
use crate::onnx::clipped;
use crate::{EngineKind, Error, Onnx, Result};

/// Most nodes: plans take time that grows with their square.
const MAX_NODES: usize = 4096;

/// Most channels of all nodes that keep numbers for each of theirs: 256 MiB. A constant of one value may be for any number
/// of channels, so that a file of a few bytes can ask for them. A ResNet-152 has 75,000, and as many in its
/// normalisations.
const MAX_CHANNELS: usize = 1 << 24;

/// What a name stands for.
#[derive(Clone)]
pub(super) enum Value<'a> {
    /// Images.
    Images(Images),
    /// A tensor of the file.
    Constant(Constant<'a>),
    /// A shape.
    Sizes(Vec<Size>),
}

/// A value that is computed for each image, `[batch, channels, height, width]` or `[batch, channels]`.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) value: usize,
    /// Whether the axes of pixels, of size 1, are left out.
    pub(super) flat: bool,
}

/// A graph on its way in.
pub(super) struct Reader<'a> {
    pub(super) graph: Graph<'a>,
    /// The one batch size that the file allows.
    pub(super) batch: Option<usize>,
    tensors: HashMap<&'a str, &'a TensorProto>,
    names: HashMap<&'a str, Value<'a>>,
    label: Label,
    /// Channels that nodes may still keep numbers for.
    channels_left: usize,
}

/// Reads the graph of a file.
///
/// # Errors
///
/// [`Error::Unsupported`] for an operation that this engine has not, or not so.
pub(in super::super) fn read(onnx: &Onnx) -> Result<Graph<'_>> {
    let signature = onnx.signature();
    let shape = Shape::new(signature.channels, signature.height, signature.width).map_err(failed)?;
    let graph = onnx.proto().graph.as_ref().ok_or_else(|| failed("the file has no graph".to_owned()))?;
    let mut reader = Reader {
        graph: Graph { values: vec![shape], nodes: Vec::new(), output: INPUT },
        batch: signature.batch,
        tensors: graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect(),
        names: HashMap::from([(
            signature.input.as_str(),
            Value::Images(Images { value: INPUT, flat: false }),
        )]),
        label: Label::new(String::new(), String::new()),
        channels_left: MAX_CHANNELS,
    };
    for (place, node) in graph.node.iter().enumerate() {
        reader.node(place, node)?;
    }
    reader.finish(&signature.output, signature.classes)
}

/// The engine failed to load the network.
pub(in super::super) fn failed(reason: String) -> Error {
    Error::Engine { engine: EngineKind::Native, action: "load the network", reason: clipped(reason) }
}

impl<'a> Reader<'a> {
    fn node(&mut self, place: usize, node: &'a NodeProto) -> Result<()> {
        let name = if node.name.is_empty() { format!("#{place}") } else { node.name.clone() };
        let operation = match node.domain.as_str() {
            "" | "ai.onnx" => node.op_type.clone(),
            domain => format!("{domain}.{}", node.op_type),
        };
        self.label = Label::new(name, operation.clone());
        // Those that make no step count too: each name holds a shape.
        if place >= MAX_NODES {
            return Err(self.label.unsupported(format!("it is one of more than {MAX_NODES}")));
        }
        let value = lower::lower(self, &operation, node);
        let value = value.map_err(|reason| self.label.unsupported(reason))?;
        // Outputs after the first are a mask of `Dropout` and the like: whoever reads one finds no such value.
        if let Some(output) = node.output.first() {
            self.names.insert(output, value);
        }
        Ok(())
    }

    /// What an input stands for; none where it is left out.
    pub(super) fn input(&self, node: &'a NodeProto, at: usize) -> Result<Option<Value<'a>>, String> {
        let Some(name) = node.input.get(at).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        if let Some(value) = self.names.get(name.as_str()) {
            return Ok(Some(value.clone()));
        }
        match self.tensors.get(name.as_str()) {
            Some(tensor) => Ok(Some(Value::Constant(Constant::new(tensor)?))),
            None => Err(format!("its input `{name}` is not known")),
        }
    }

    /// An input that is images.
    pub(super) fn images(&self, node: &'a NodeProto, at: usize) -> Result<Images, String> {
        match self.input(node, at)? {
            Some(Value::Images(images)) => Ok(images),
            _ => Err(format!("its input {at} is not computed from the images")),
        }
    }

    /// An input that is a tensor of the file, or left out.
    pub(super) fn constant(&self, node: &'a NodeProto, at: usize) -> Result<Option<Constant<'a>>, String> {
        match self.input(node, at)? {
            Some(Value::Constant(constant)) => Ok(Some(constant)),
            None => Ok(None),
            _ => Err(format!("its input {at} is no constant")),
        }
    }

    /// An input of one real number for each channel.
    pub(super) fn channels(
        &self,
        node: &'a NodeProto,
        at: usize,
        channels: usize,
    ) -> Result<Vec<f64>, String> {
        let constant = self.constant(node, at)?.ok_or_else(|| format!("its input {at} is missing"))?;
        if constant.len() != channels || !constant.is_float() {
            return Err(format!("its input {at} has {} values for {channels} channels", constant.len()));
        }
        Ok(constant.values().into_iter().map(f64::from).collect())
    }

    /// Refuses a node that keeps numbers for each of so many channels, where all up to it have too many.
    pub(super) fn take_channels(&mut self, channels: usize) -> Result<(), String> {
        let left = self.channels_left.checked_sub(channels);
        self.channels_left =
            left.ok_or_else(|| format!("nodes up to it have more than {MAX_CHANNELS} channels"))?;
        Ok(())
    }

    pub(super) fn shape(&self, images: Images) -> Shape {
        self.graph.values[images.value]
    }

    /// The axes of images.
    pub(super) fn sizes(&self, images: Images) -> Vec<Size> {
        let Shape { channels, height, width } = self.shape(images);
        let mut sizes = vec![Size::Batch];
        let axes = if images.flat { &[channels][..] } else { &[channels, height, width] };
        sizes.extend(axes.iter().map(|&size| Size::Known(size as i64)));
        sizes
    }

    /// Adds a node that gives images of this shape.
    pub(super) fn push(&mut self, op: Op<'a>, inputs: Vec<usize>, shape: Shape, flat: bool) -> Value<'a> {
        let value = self.graph.values.len();
        self.graph.values.push(shape);
        self.graph.nodes.push(Node { label: self.label.clone(), op, inputs, output: value });
        Value::Images(Images { value, flat })
    }

    fn finish(mut self, output: &str, classes: usize) -> Result<Graph<'a>> {
        match self.names.get(output) {
            Some(&Value::Images(images)) if images.value != INPUT && images.flat => {
                let found = self.shape(images).channels;
                if found != classes {
                    return Err(failed(format!("`{output}` has {found} classes, the file says {classes}")));
                }
                self.graph.output = images.value;
                Ok(self.graph)
            }
            _ => Err(failed(format!(
                "`{output}` is no logits [batch, classes] that are computed from the images"
            ))),
        }
    }
}
