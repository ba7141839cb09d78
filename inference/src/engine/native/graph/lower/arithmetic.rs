//! Sums and products of images, and of images with constants.

use tract_onnx::pb::NodeProto;

use super::super::attributes::Attributes;
use super::super::reader::{Images, Reader, Value};
use super::super::{Affine, Constant, Op};
use super::Lowered;
use crate::engine::native::kernel::Activation;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, with statistics of the file.
pub(super) fn batch_normalization<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["epsilon", "momentum", "spatial", "training_mode"])?;
    attributes.only("training_mode", 0)?;
    attributes.only("spatial", 1)?;
    let epsilon = f64::from(attributes.float("epsilon", 1e-5)?);
    let images = reader.images(node, 0)?;
    let channels = reader.shape(images).channels;
    reader.take_channels(channels)?;
    let [gamma, beta, mean, variance] = [1, 2, 3, 4].map(|at| reader.channels(node, at, channels));
    let (beta, mean) = (beta?, mean?);
    let scale: Vec<_> =
        gamma?.iter().zip(variance?).map(|(gamma, variance)| gamma / (variance + epsilon).sqrt()).collect();
    let shift = (0..channels).map(|channel| beta[channel] - mean[channel] * scale[channel]).collect();
    Ok(affine(reader, images, scale, shift))
}

fn affine<'a>(reader: &mut Reader<'a>, images: Images, scale: Vec<f64>, shift: Vec<f64>) -> Value<'a> {
    let shape = reader.shape(images);
    let op = Op::Affine(Affine { scale, shift, activation: None });
    reader.push(op, vec![images.value], shape, images.flat)
}

pub(super) fn arithmetic<'a>(reader: &mut Reader<'a>, node: &'a NodeProto, operation: &str) -> Lowered<'a> {
    Attributes::of(node, &[])?;
    match (reader.input(node, 0)?, reader.input(node, 1)?) {
        (Some(Value::Images(a)), Some(Value::Images(b))) => {
            let shape = reader.shape(a);
            if operation != "Add" || shape != reader.shape(b) || a.flat != b.flat {
                return Err("of images only sums of equal shapes are supported".to_owned());
            }
            Ok(reader.push(Op::Add(None), vec![a.value, b.value], shape, a.flat))
        }
        (Some(Value::Images(images)), Some(Value::Constant(constant))) => {
            with_constant(reader, images, &constant, operation)
        }
        (Some(Value::Constant(constant)), Some(Value::Images(images)))
            if matches!(operation, "Add" | "Mul") =>
        {
            with_constant(reader, images, &constant, operation)
        }
        _ => Err("its inputs are neither images nor images and a constant".to_owned()),
    }
}

fn with_constant<'a>(
    reader: &mut Reader<'a>,
    images: Images,
    constant: &Constant<'a>,
    operation: &str,
) -> Lowered<'a> {
    let channels = reader.shape(images).channels;
    reader.take_channels(channels)?;
    let constant = by_channel(images, constant, channels)?;
    let (scale, shift) = match operation {
        "Add" => (vec![1.; channels], constant),
        "Sub" => (vec![1.; channels], constant.iter().map(|value| -value).collect()),
        "Mul" => (constant, vec![0.; channels]),
        _ => (constant.iter().map(|value| value.recip()).collect(), vec![0.; channels]),
    };
    Ok(affine(reader, images, scale, shift))
}

/// The constant's value for each channel, where it is one for all or has but this axis.
fn by_channel(images: Images, constant: &Constant<'_>, channels: usize) -> Result<Vec<f64>, String> {
    let dims = constant.dims();
    // Aligned at the last axis: the channels are the last of a matrix, and the last but two of images.
    let from_end = if images.flat { 0 } else { 2 };
    let rank = if images.flat { 2 } else { 4 };
    let alone =
        dims.iter().rev().enumerate().all(|(at, &dim)| dim == 1 || (at == from_end && dim == channels));
    if !constant.is_float() || !alone || dims.len() > rank {
        return Err(format!("its constant {dims:?} is no real number for each of {channels} channels"));
    }
    let values = constant.values();
    Ok(values.iter().cycle().take(channels).copied().map(f64::from).collect())
}

/// The bounds: inputs since opset 11, attributes before.
pub(super) fn clip<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Result<Activation, String> {
    let attributes = Attributes::of(node, &["min", "max"])?;
    let bound = |at, name, default| match reader.constant(node, at)? {
        Some(constant) if constant.len() == 1 && constant.is_float() => Ok(constant.values()[0]),
        Some(_) => Err(format!("its bound `{name}` is not one real number")),
        None => attributes.float(name, default),
    };
    let bounds =
        Activation { low: bound(1, "min", f32::NEG_INFINITY)?, high: bound(2, "max", f32::INFINITY)? };
    if bounds.low <= bounds.high { Ok(bounds) } else { Err("its bounds are crossed".to_owned()) }
}
