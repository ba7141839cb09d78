//! Weights in fewer bits.

use half::f16;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};

use super::super::WeightType;
use super::super::graph::opset;
use super::super::tensor::{F32, type_name};
use super::super::values::{f32_tensor, f32_values, tensor};
use super::names::Names;
use super::weights::{Weight, weights};
use crate::{Error, Result};

/// The first opset whose `DequantizeLinear` has a scale for each channel.
const PER_CHANNEL_OPSET: i64 = 13;

/// A weight in fewer bits, which takes the place of one tensor.
struct Narrowed {
    place: usize,
    data: Vec<u8>,
    /// For int8: the axis of the output channels, and their scales.
    scales: Option<(usize, Vec<f32>)>,
}

/// Narrows the weights. Everything is computed before anything is changed.
pub(in crate::onnx) fn narrow(model: &mut ModelProto, to: WeightType) -> Result<()> {
    let data_type = match to {
        WeightType::F32 => return Ok(()),
        WeightType::F16 => DataType::Float16,
        WeightType::Int8 => DataType::Int8,
    };
    let opset = opset(model)?;
    let Some(graph) = &mut model.graph else { return Ok(()) };
    let mut narrowed = Vec::new();
    for weight in weights(graph) {
        match weight {
            Weight::Initializer { place, axis } if graph.initializer[place].data_type == F32 => {
                let tensor = &graph.initializer[place];
                let refuse = |reason| Error::Weights { tensor: tensor.name.clone(), weights: to, reason };
                if to == WeightType::Int8 && opset < PER_CHANNEL_OPSET {
                    return Err(refuse(format!(
                        "opset {opset} has no scales per channel, opset {PER_CHANNEL_OPSET} has"
                    )));
                }
                narrowed.push(Narrowed::of(tensor, place, axis, to).map_err(refuse)?);
            }
            Weight::Initializer { .. } => {}
            Weight::Narrow { maker } => refuse_twice(graph, maker, data_type, to)?,
        }
    }
    let mut names = Names::of(graph);
    let nodes: Vec<_> =
        narrowed.into_iter().map(|narrowed| narrowed.apply(graph, &mut names, data_type)).collect();
    // They take tensors alone, so that the front is always early enough.
    graph.node.splice(0..0, nodes);
    Ok(())
}

/// Weights of another type have lost what they were trained to, and would lose more.
fn refuse_twice(graph: &GraphProto, maker: usize, data_type: DataType, to: WeightType) -> Result<()> {
    let source = graph.node[maker].input.first();
    let tensor = graph.initializer.iter().find(|tensor| Some(&tensor.name) == source);
    match tensor {
        Some(tensor) if tensor.data_type != data_type as i32 => Err(Error::Weights {
            tensor: tensor.name.clone(),
            weights: to,
            reason: format!(
                "it is stored as {} already; start from the f32 file",
                type_name(tensor.data_type)
            ),
        }),
        _ => Ok(()),
    }
}

impl Narrowed {
    fn of(tensor: &TensorProto, place: usize, axis: usize, to: WeightType) -> Result<Self, String> {
        let values = f32_values(tensor).unwrap_or_default();
        if let Some((index, value)) = values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
            return Err(format!("its value {index} is {value}"));
        }
        if to == WeightType::F16 {
            return Ok(Self { place, data: to_f16(&values)?, scales: None });
        }
        let (scales, data) = quantize(&values, &tensor.dims, axis);
        Ok(Self { place, data, scales: Some((axis, scales)) })
    }

    /// Puts the narrow tensor in the place of the wide one, whose name becomes that of a node's output, so that nothing
    /// else changes.
    fn apply(self, graph: &mut GraphProto, names: &mut Names, data_type: DataType) -> NodeProto {
        let wide = std::mem::take(&mut graph.initializer[self.place]);
        let TensorProto { name, dims, .. } = wide;
        let narrow = names.unique(format!("{name}.{}", type_name(data_type as i32)));
        graph.initializer[self.place] = tensor(narrow.clone(), data_type, dims, self.data);
        let Some((axis, scales)) = self.scales else {
            let to = integer("to", i64::from(F32));
            return node(names, "Cast", vec![narrow], name, to);
        };
        let scale = names.unique(format!("{name}.scale"));
        graph.initializer.push(f32_tensor(scale.clone(), vec![scales.len() as i64], scales.into_iter()));
        node(names, "DequantizeLinear", vec![narrow, scale], name, integer("axis", axis as i64))
    }
}

fn node(
    names: &mut Names,
    operation: &str,
    input: Vec<String>,
    output: String,
    attribute: AttributeProto,
) -> NodeProto {
    NodeProto {
        name: names.unique(format!("{output}.{operation}")),
        input,
        output: vec![output],
        op_type: operation.to_owned(),
        attribute: vec![attribute],
        ..Default::default()
    }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..Default::default()
    }
}

/// Rounds to the nearest, to even where two are as near.
fn to_f16(values: &[f32]) -> Result<Vec<u8>, String> {
    let mut data = Vec::with_capacity(2 * values.len());
    for (index, value) in values.iter().enumerate() {
        let half = f16::from_f32(*value);
        if half.is_infinite() {
            return Err(format!("its value {index} is {value}, beyond {}", f16::MAX));
        }
        data.extend(half.to_le_bytes());
    }
    Ok(data)
}

/// Symmetric with one scale for each index of `axis`: `scale = max |w| / 127`, `q = round(w / scale)`, so that
/// `|w - q scale| <= scale / 2`.
fn quantize(values: &[f32], dims: &[i64], axis: usize) -> (Vec<f32>, Vec<u8>) {
    let size = |dims: &[i64]| dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product::<usize>();
    let channels = size(&dims[axis..=axis]);
    let inner = size(&dims[axis + 1..]).max(1);
    let channel = |index: usize| index / inner % channels.max(1);
    let mut largest = vec![0.0_f32; channels];
    for (index, value) in values.iter().enumerate() {
        let largest = &mut largest[channel(index)];
        *largest = largest.max(value.abs());
    }
    let scales: Vec<_> = largest.into_iter().map(scale).collect();
    let quantized = values.iter().enumerate().map(|(index, value)| {
        let quotient = f64::from(*value) / f64::from(scales[channel(index)]);
        quotient.round_ties_even().clamp(-127.0, 127.0) as i8 as u8
    });
    let quantized = quantized.collect();
    (scales, quantized)
}

/// A channel of zeros has any scale. A subnormal one would be told too coarsely for the bound, and of the largest numbers
/// one that was rounded up would give infinity back.
fn scale(largest: f32) -> f32 {
    if largest == 0.0 {
        return 1.0;
    }
    let scale = (largest / 127.0).max(f32::MIN_POSITIVE);
    if (scale * 127.0).is_finite() { scale } else { scale.next_down() }
}
