//! What a network takes and gives.

use std::collections::HashSet;

use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dimension;
use tract_onnx::pb::{GraphProto, ValueInfoProto, type_proto};

use super::clipped;
use super::tensor::{F32, type_name};
use crate::{Error, Result};

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

/// Values of one image: a colour image of 4,700 by 4,700 pixels.
const MAX_IMAGE_VALUES: usize = 1 << 26;
const MAX_CLASSES: usize = 1 << 24;
const MAX_BATCH: usize = 1 << 20;

impl Signature {
    /// Values of one image.
    pub fn image_values(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Reads it from a graph.
    pub(super) fn of(graph: &GraphProto) -> Result<Self> {
        // Before the fourth version of ONNX's format constants were listed as inputs too.
        let constants: HashSet<_> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs = graph.input.iter().filter(|input| !constants.contains(input.name.as_str()));
        let input = only(inputs.collect(), "input")?;
        let output = only(graph.output.iter().collect(), "output")?;
        let [batch, channels, height, width] =
            shape("input", input, ["batch", "channels", "height", "width"])?;
        let [output_batch, classes] = shape("output", output, ["batch", "classes"])?;
        let fixed = |size: Option<usize>, axis, value: &ValueInfoProto, max| match size {
            Some(size) if size <= max => Ok(size),
            Some(size) => {
                refuse(format!("`{}` has {size} {axis}, more than the {max} that are allowed", value.name))
            }
            None => refuse(format!("the number of {axis} of `{}` is not fixed", value.name)),
        };
        let signature = Self {
            input: input.name.clone(),
            output: output.name.clone(),
            batch: batch.map(|size| fixed(Some(size), "images", input, MAX_BATCH)).transpose()?,
            channels: fixed(channels, "channels", input, MAX_IMAGE_VALUES)?,
            height: fixed(height, "rows", input, MAX_IMAGE_VALUES)?,
            width: fixed(width, "columns", input, MAX_IMAGE_VALUES)?,
            classes: fixed(classes, "classes", output, MAX_CLASSES)?,
        };
        signature.check_batch(output_batch)?;
        signature.check_image()?;
        Ok(signature)
    }

    /// An output of a fixed batch behind an input of a free one means that the exporter wrote its sample's size into
    /// the graph, as a constant of a `Reshape`, say.
    fn check_batch(&self, output: Option<usize>) -> Result<()> {
        match (self.batch, output) {
            (_, None) => Ok(()),
            (Some(input), Some(output)) if input == output => Ok(()),
            (input, Some(output)) => {
                let input = input.map_or("any number of".to_owned(), |size| size.to_string());
                refuse(format!("it takes {input} images and gives the logits of {output}"))
            }
        }
    }

    fn check_image(&self) -> Result<()> {
        let values = self.channels.checked_mul(self.height).and_then(|values| values.checked_mul(self.width));
        if values.is_none_or(|values| values > MAX_IMAGE_VALUES) {
            let Self { channels, height, width, .. } = self;
            return refuse(format!(
                "an image of {channels} x {height} x {width} is larger than {MAX_IMAGE_VALUES} values"
            ));
        }
        Ok(())
    }
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Signature { reason: clipped(reason) })
}

fn only<'a>(values: Vec<&'a ValueInfoProto>, what: &str) -> Result<&'a ValueInfoProto> {
    match values.as_slice() {
        [value] => Ok(value),
        [] => refuse(format!("it has no {what}")),
        // A foreign file can have thousands.
        _ => {
            let names: Vec<_> = values.iter().take(4).map(|value| format!("`{}`", value.name)).collect();
            let more = if values.len() > names.len() { ", ..." } else { "" };
            refuse(format!("it has {} {what}s: {}{more}", values.len(), names.join(", ")))
        }
    }
}

/// The sizes of a value's axes, none for one that is free.
fn shape<const N: usize>(what: &str, value: &ValueInfoProto, axes: [&str; N]) -> Result<[Option<usize>; N]> {
    let name = &value.name;
    let Some(type_proto::Value::TensorType(tensor)) = value.r#type.as_ref().and_then(|ty| ty.value.as_ref())
    else {
        return refuse(format!("its {what} `{name}` is no tensor"));
    };
    if tensor.elem_type != F32 {
        return refuse(format!("its {what} `{name}` is of {}", type_name(tensor.elem_type)));
    }
    let Some(shape) = &tensor.shape else {
        return refuse(format!("the shape of its {what} `{name}` is not said"));
    };
    if shape.dim.len() != N {
        return refuse(format!("its {what} `{name}` has {} axes instead of {N}", shape.dim.len()));
    }
    let mut sizes = [None; N];
    for ((size, dim), axis) in sizes.iter_mut().zip(&shape.dim).zip(axes) {
        if let Some(Dimension::DimValue(value)) = dim.value {
            *size = usize::try_from(value).ok().filter(|value| *value > 0);
            if size.is_none() {
                return refuse(format!("the {axis} axis of its {what} `{name}` is {value}"));
            }
        }
    }
    Ok(sizes)
}
