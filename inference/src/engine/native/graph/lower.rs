//! What each operation of ONNX is here.
//!
//! Source: <https://onnx.ai/onnx/operators/>.

mod arithmetic;
mod convolution;
mod shape;

use tract_onnx::pb::NodeProto;

use super::attributes::Attributes;
use super::reader::{Images, Reader, Value};
use super::{Op, Pool, PoolKind, Shape, Window};
use crate::engine::native::kernel::Activation;

type Lowered<'a> = Result<Value<'a>, String>;

/// Adds what a node computes to the graph, and gives what its output stands for.
pub(super) fn lower<'a>(reader: &mut Reader<'a>, operation: &str, node: &'a NodeProto) -> Lowered<'a> {
    match operation {
        "Conv" => convolution::conv(reader, node),
        "Gemm" => convolution::gemm(reader, node),
        "MatMul" => convolution::mat_mul(reader, node),
        "BatchNormalization" => arithmetic::batch_normalization(reader, node),
        "Add" | "Sub" | "Mul" | "Div" => arithmetic::arithmetic(reader, node, operation),
        "Relu" => {
            Attributes::of(node, &[])?;
            bound(reader, node, Activation::RELU)
        }
        "Clip" => {
            let bounds = arithmetic::clip(reader, node)?;
            bound(reader, node, bounds)
        }
        "MaxPool" => max_pool(reader, node),
        "AveragePool" => average_pool(reader, node),
        "GlobalAveragePool" => {
            Attributes::of(node, &[])?;
            global_average(reader, node, false)
        }
        "ReduceMean" => shape::reduce_mean(reader, node),
        "Flatten" => shape::flatten(reader, node),
        "Reshape" => shape::reshape(reader, node),
        "Squeeze" | "Unsqueeze" => shape::squeeze(reader, node, operation),
        "Shape" => shape::shape(reader, node),
        "Gather" => shape::gather(reader, node),
        "Concat" => shape::concat(reader, node),
        "Identity" | "Dropout" => shape::identity(reader, node),
        "Constant" => shape::constant(node),
        "Cast" => shape::cast(reader, node),
        "DequantizeLinear" => shape::dequantize(reader, node),
        _ => Err("there is no such operation here".to_owned()),
    }
}

fn bound<'a>(reader: &mut Reader<'a>, node: &'a NodeProto, bounds: Activation) -> Lowered<'a> {
    let images = reader.images(node, 0)?;
    let shape = reader.shape(images);
    Ok(reader.push(Op::Bound(bounds), vec![images.value], shape, images.flat))
}

/// The mean of the pixels of each channel.
fn global_average<'a>(reader: &mut Reader<'a>, node: &'a NodeProto, flat: bool) -> Lowered<'a> {
    let images = spatial(reader, node)?;
    let shape = Shape::new(reader.shape(images).channels, 1, 1)?;
    Ok(reader.push(Op::GlobalAverage, vec![images.value], shape, flat))
}

/// The first input, which must have pixels.
fn spatial<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Result<Images, String> {
    let images = reader.images(node, 0)?;
    if images.flat { Err("its input is no [batch, channels, height, width]".to_owned()) } else { Ok(images) }
}

const POOL: [&str; 6] = ["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"];

fn max_pool<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let known = [&POOL[..], &["storage_order"]].concat();
    pool(reader, node, &Attributes::of(node, &known)?, PoolKind::Max)
}

fn average_pool<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let known = [&POOL[..], &["count_include_pad"]].concat();
    let attributes = Attributes::of(node, &known)?;
    let padding = attributes.flag("count_include_pad", false)?;
    pool(reader, node, &attributes, PoolKind::Average { padding })
}

fn pool<'a>(
    reader: &mut Reader<'a>,
    node: &'a NodeProto,
    attributes: &Attributes<'_>,
    kind: PoolKind,
) -> Lowered<'a> {
    let images = spatial(reader, node)?;
    let shape = reader.shape(images);
    let size = [shape.height, shape.width];
    let mut window = attributes.window(None, size)?;
    if (0..2).any(|axis| window.before[axis].max(window.after[axis]) >= window.kernel[axis]) {
        return Err("its padding is as large as its window".to_owned());
    }
    if kind != PoolKind::Max && window.dilation != [1, 1] {
        return Err("its attribute `dilations` is not supported".to_owned());
    }
    if attributes.flag("ceil_mode", false)? {
        ceil(&mut window, size, kind)?;
    }
    let shape = Shape::new(shape.channels, window.places(0, size[0])?, window.places(1, size[1])?)?;
    Ok(reader.push(Op::Pool(Pool { window, kind }), vec![images.value], shape, false))
}

/// Lets the last window reach beyond the image. Engines disagree on a window that begins there, and on what it is a mean
/// of, so that neither is taken.
fn ceil(window: &mut Window, size: [usize; 2], kind: PoolKind) -> Result<(), String> {
    for (axis, size) in size.into_iter().enumerate() {
        let places = window.places(axis, size)?;
        let next = places * window.stride[axis];
        let end = next + window.reach(axis);
        let padded = size + window.before[axis] + window.after[axis];
        if end - padded >= window.stride[axis] {
            continue;
        }
        if next >= size + window.before[axis] || kind == (PoolKind::Average { padding: true }) {
            return Err("its attribute `ceil_mode` is not supported for this size".to_owned());
        }
        window.after[axis] += end - padded;
    }
    Ok(())
}
