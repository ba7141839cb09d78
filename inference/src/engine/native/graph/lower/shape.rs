//! What moves no values: shapes, constants, and axes of size 1.

use tract_onnx::pb::NodeProto;
use tract_onnx::pb::tensor_proto::DataType;

use super::super::attributes::Attributes;
use super::super::reader::{Images, Reader, Value};
use super::super::sizes::{self, Size};
use super::super::{Constant, Op, Shape};
use super::{Lowered, global_average};

/// Numbers of an input that is a constant or a shape that the graph computed.
fn numbers<'a>(reader: &Reader<'a>, node: &'a NodeProto, at: usize) -> Result<Option<Vec<Size>>, String> {
    match reader.input(node, at)? {
        None => Ok(None),
        Some(Value::Sizes(sizes)) => Ok(Some(sizes)),
        Some(Value::Constant(constant)) => {
            sizes::check(constant.len())?;
            let integers =
                constant.integers().ok_or_else(|| format!("its input {at} is no whole numbers"))?;
            Ok(Some(integers.into_iter().map(Size::Known).collect()))
        }
        Some(Value::Images(_)) => Err(format!("its input {at} is computed from the images")),
    }
}

/// Whole numbers: of the attribute `name` in old files, of input 1 in others.
fn axes<'a>(
    reader: &Reader<'a>,
    node: &'a NodeProto,
    attributes: &Attributes<'a>,
) -> Result<Option<Vec<i64>>, String> {
    if let Some(axes) = attributes.ints("axes")? {
        return Ok(Some(axes.to_vec()));
    }
    let fixed =
        |size| if let Size::Known(size) = size { Ok(size) } else { Err("its axes are not fixed".to_owned()) };
    numbers(reader, node, 1)?.map(|axes| axes.into_iter().map(fixed).collect()).transpose()
}

pub(super) fn reduce_mean<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axes", "keepdims", "noop_with_empty_axes"])?;
    let mut axes = axes(reader, node, &attributes)?.unwrap_or_default();
    for axis in &mut axes {
        *axis = sizes::place(*axis, 4)? as i64;
    }
    axes.sort_unstable();
    if axes != [2, 3] {
        return Err(format!("its axes are {axes:?}, only height and width are supported"));
    }
    global_average(reader, node, !attributes.flag("keepdims", true)?)
}

pub(super) fn flatten<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axis"])?;
    let images = reader.images(node, 0)?;
    let rank = if images.flat { 2 } else { 4 };
    match attributes.int("axis", 1)? {
        axis if axis == 1 || axis == 1 - rank => flat(reader, images),
        axis => Err(format!("its attribute `axis` is {axis}, only 1 is supported")),
    }
}

/// Makes all values of an image channels.
fn flat<'a>(reader: &mut Reader<'a>, images: Images) -> Lowered<'a> {
    let shape = reader.shape(images);
    if shape.pixels() == 1 {
        return Ok(Value::Images(Images { flat: true, ..images }));
    }
    let all = Shape::new(shape.channels * shape.pixels(), 1, 1)?;
    Ok(reader.push(Op::Flatten, vec![images.value], all, true))
}

pub(super) fn reshape<'a>(reader: &mut Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["allowzero"])?;
    let images = reader.images(node, 0)?;
    let to = numbers(reader, node, 1)?.ok_or("it has no shape")?;
    let from = reader.sizes(images);
    let to = sizes::reshape(&from, &to, reader.batch, !attributes.flag("allowzero", false)?)?;
    let shape = reader.shape(images);
    let equal = |dims: &[i64]| {
        dims.iter().zip([shape.channels, shape.height, shape.width]).all(|(&to, dim)| to == dim as i64)
    };
    match to.as_slice() {
        [_] => flat(reader, images),
        &[_, _, _] if equal(&to) => Ok(Value::Images(Images { flat: false, ..images })),
        _ => Err(format!("it makes images of {to:?}, of which only vectors are supported")),
    }
}

/// Drops or adds the axes of pixels, of size 1.
pub(super) fn squeeze<'a>(reader: &mut Reader<'a>, node: &'a NodeProto, operation: &str) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axes"])?;
    let axes = axes(reader, node, &attributes)?;
    let images = match reader.input(node, 0)?.ok_or("it has no input")? {
        Value::Images(images) => images,
        // A number of a shape is kept as a shape of one.
        Value::Sizes(sizes) if sizes.len() == 1 && axes.is_none_or(|axes| axes == [0]) => {
            return Ok(Value::Sizes(sizes));
        }
        _ => return Err("its input is not computed from the images".to_owned()),
    };
    let flat = operation == "Squeeze";
    let mut places = axes.unwrap_or_default();
    for axis in &mut places {
        *axis = sizes::place(*axis, 4)? as i64;
    }
    places.sort_unstable();
    if images.flat == flat || reader.shape(images).pixels() != 1 || places != [2, 3] {
        return Err("only the axes of height and width, of size 1, can be dropped or added".to_owned());
    }
    Ok(Value::Images(Images { flat, ..images }))
}

pub(super) fn shape<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["start", "end"])?;
    let sizes = reader.sizes(reader.images(node, 0)?);
    let bound = |name, default: i64| -> Result<usize, String> {
        let at = attributes.int(name, default)?;
        let at = if at < 0 { at.saturating_add(sizes.len() as i64) } else { at };
        Ok(usize::try_from(at.max(0)).unwrap_or(usize::MAX).min(sizes.len()))
    };
    let (start, end) = (bound("start", 0)?, bound("end", sizes.len() as i64)?);
    Ok(Value::Sizes(sizes.get(start..end).unwrap_or_default().to_vec()))
}

pub(super) fn gather<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axis"])?;
    attributes.only("axis", 0)?;
    let Some(Value::Sizes(from)) = reader.input(node, 0)? else {
        return Err("only numbers of a shape can be gathered".to_owned());
    };
    let indices = reader.constant(node, 1)?.ok_or("its indices are not fixed")?;
    sizes::check(indices.len())?;
    let indices = indices.integers().ok_or("its indices are no whole numbers")?;
    Ok(Value::Sizes(sizes::gather(&from, &indices)?))
}

pub(super) fn concat<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axis"])?;
    attributes.only("axis", 0)?;
    let mut sizes = Vec::new();
    for at in 0..node.input.len() {
        sizes.extend(numbers(reader, node, at)?.ok_or("an input is missing")?);
        sizes::check(sizes.len())?;
    }
    Ok(Value::Sizes(sizes))
}

/// What leaves its input as it is. `Dropout` does at inference.
pub(super) fn identity<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    Attributes::of(node, &["ratio", "seed"])?;
    if node.op_type == "Dropout" && node.input.get(2).is_some_and(|name| !name.is_empty()) {
        return Err("its input `training_mode` is not supported".to_owned());
    }
    reader.input(node, 0)?.ok_or_else(|| "it has no input".to_owned())
}

pub(super) fn constant(node: &NodeProto) -> Lowered<'_> {
    let attributes = Attributes::of(node, &["value", "value_int", "value_ints"])?;
    if let Some(tensor) = attributes.tensor("value")? {
        return Ok(Value::Constant(Constant::new(tensor)?));
    }
    let number = [attributes.int("value_int", 0)?];
    let numbers = match attributes.ints("value_ints")? {
        Some(numbers) => numbers,
        None if attributes.has("value_int") => &number,
        None => return Err("it has no value".to_owned()),
    };
    sizes::check(numbers.len())?;
    Ok(Value::Sizes(numbers.iter().copied().map(Size::Known).collect()))
}

/// Constants are widened to f32 when they are used, so that a cast to it changes nothing.
pub(super) fn cast<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["to", "saturate", "round_mode"])?;
    let to = attributes.int("to", 0)?;
    match reader.input(node, 0)? {
        Some(Value::Constant(constant)) if to == DataType::Float as i64 && constant.is_float() => {
            Ok(Value::Constant(constant))
        }
        Some(Value::Images(images)) if to == DataType::Float as i64 => Ok(Value::Images(images)),
        Some(Value::Sizes(sizes)) if to == DataType::Int64 as i64 => Ok(Value::Sizes(sizes)),
        _ => Err("only real numbers of the file can be cast, and to f32 alone".to_owned()),
    }
}

pub(super) fn dequantize<'a>(reader: &Reader<'a>, node: &'a NodeProto) -> Lowered<'a> {
    let attributes = Attributes::of(node, &["axis", "block_size", "output_dtype"])?;
    attributes.only("block_size", 0)?;
    if !matches!(attributes.int("output_dtype", 0)?, 0 | 1) {
        return Err("its attribute `output_dtype` is not f32".to_owned());
    }
    let missing = || "its input is missing".to_owned();
    let quantised = reader.constant(node, 0)?.ok_or_else(missing)?;
    let scale = reader.constant(node, 1)?.ok_or_else(missing)?;
    let zero = reader.constant(node, 2)?;
    Ok(Value::Constant(quantised.dequantised(&scale, zero.as_ref(), attributes.int("axis", 1)?)?))
}
