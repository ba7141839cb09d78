//! Convolutions and products with matrices.

use tract_onnx::pb::NodeProto;

use super::super::attributes::Attributes;
use super::super::reader::Reader;
use super::super::{Constant, Conv, Op, Shape, WeightOrder, Window};
use super::{Lowered, spatial};

pub(super) fn conv<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let known = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];
    let attributes = Attributes::of(node, &known)?;
    let images = spatial(reader, node)?;
    let shape = reader.shape(images);
    let weight = weight(reader, node)?;
    let &[out_channels, group_channels, height, width] = weight.dims() else {
        return Err(format!("its weights are {:?}, not [out, in, height, width]", weight.dims()));
    };
    let groups = usize::try_from(attributes.int("group", 1)?).unwrap_or(0);
    let fits = groups > 0
        && out_channels.is_multiple_of(groups)
        && group_channels.checked_mul(groups) == Some(shape.channels);
    if !fits || out_channels == 0 {
        let channels = shape.channels;
        return Err(format!(
            "its weights {:?} do not fit {channels} channels in {groups} groups",
            weight.dims()
        ));
    }
    reader.take_channels(out_channels)?;
    let size = [shape.height, shape.width];
    let window = attributes.window(Some([height, width]), size)?;
    let bias = match reader.constant(node, 2)? {
        Some(_) => reader.channels(node, 2, out_channels)?,
        None => vec![0.; out_channels],
    };
    let out = Shape::new(out_channels, window.places(0, size[0])?, window.places(1, size[1])?)?;
    let conv = Conv {
        weight,
        order: WeightOrder::OutFirst,
        in_channels: shape.channels,
        out_channels,
        groups,
        window,
        scale: vec![1.; out_channels],
        bias,
        activation: None,
    };
    Ok(reader.push(Op::Conv(conv), vec![images.value], out, false))
}

fn weight<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Result<Constant<'a>, String> {
    let weight = reader.constant(node, 1)?.ok_or("it has no weights")?;
    if weight.is_float() { Ok(weight) } else { Err("its weights are no real numbers".to_owned()) }
}

pub(super) fn gemm<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["alpha", "beta", "transA", "transB"])?;
    attributes.only("transA", 0)?;
    let order = if attributes.flag("transB", false)? { WeightOrder::OutFirst } else { WeightOrder::InFirst };
    let alpha = f64::from(attributes.float("alpha", 1.)?);
    let beta = f64::from(attributes.float("beta", 1.)?);
    dense(reader, node, order, alpha, Some(beta))
}

pub(super) fn mat_mul<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    Attributes::of(node, &[])?;
    dense(reader, node, WeightOrder::InFirst, 1., None)
}

/// `alpha * x W + beta * bias`.
fn dense<'a>(
    reader: &mut Reader<'a>,
    node: &'a NodeProto,
    order: WeightOrder,
    alpha: f64,
    beta: Option<f64>,
) -> Lowered<'a> {
    let images = reader.images(node, 0)?;
    let channels = reader.shape(images).channels;
    if !images.flat {
        return Err("its input is no [batch, channels]".to_owned());
    }
    let weight = weight(reader, node)?;
    let columns = columns(&weight, order, channels)?;
    reader.take_channels(columns)?;
    let bias = match beta {
        Some(beta) => row(reader, node, columns, beta)?,
        None => vec![0.; columns],
    };
    let shape = Shape::new(columns, 1, 1)?;
    let conv = Conv {
        weight,
        order,
        in_channels: channels,
        out_channels: columns,
        groups: 1,
        window: Window::PIXEL,
        scale: vec![alpha; columns],
        bias,
        activation: None,
    };
    Ok(reader.push(Op::Conv(conv), vec![images.value], shape, true))
}

/// The columns of a matrix that takes so many channels.
fn columns(weight: &Constant<'_>, order: WeightOrder, channels: usize) -> Result<usize, String> {
    let (rows, columns) = match (weight.dims(), order) {
        (&[rows, columns], WeightOrder::InFirst) | (&[columns, rows], WeightOrder::OutFirst) => {
            (rows, columns)
        }
        (dims, _) => return Err(format!("its weights are {dims:?}, no matrix")),
    };
    if rows != channels || columns == 0 {
        return Err(format!("its weights {:?} do not fit {channels} channels", weight.dims()));
    }
    Ok(columns)
}

/// `beta` times the third input, which is added to each row: one number for each column, or one for all.
fn row<'a>(reader: &Reader<'a>, node: &'a NodeProto, columns: usize, beta: f64) -> Result<Vec<f64>, String> {
    let Some(constant) = reader.constant(node, 2)? else {
        return Ok(vec![0.; columns]);
    };
    let (&size, others) = constant.dims().split_last().unwrap_or((&1, &[]));
    // One of `[batch, 1]` has as many numbers where the batch is of as many images, and they are those of rows.
    if others.len() > 1 || others.iter().any(|&other| other != 1) || ![1, columns].contains(&size) {
        let dims = constant.dims();
        return Err(format!("its input 2 is {dims:?}, no row of {columns}"));
    }
    let given = reader.channels(node, 2, size)?;
    Ok(given.iter().cycle().take(columns).map(|value| beta * value).collect())
}
