//! The tensors within a file.

use tract_onnx::pb::TensorProto;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};

use super::{COPY, EXPORT, format};
use crate::Result;

/// `DataType::Float` as tensors tell it.
pub(super) const F32: i32 = DataType::Float as i32;

/// The larger of a file and of what a shape with a zero in it may say.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// Most axes: those of an image are four, and engines copy shapes with every use.
pub(super) const MAX_RANK: usize = 8;

/// The name of a type, in words of Rust where it has them.
pub(super) fn type_name(data_type: i32) -> String {
    match DataType::try_from(data_type) {
        Ok(DataType::Float) => "f32".to_owned(),
        Ok(DataType::Float16) => "f16".to_owned(),
        Ok(DataType::Double) => "f64".to_owned(),
        Ok(data_type) => data_type.as_str_name().to_lowercase(),
        Err(_) => format!("the unknown type {data_type}"),
    }
}

/// The number of elements that a shape says, with the checks that make it safe to compute with.
pub(super) fn elements(dims: &[i64]) -> Option<usize> {
    let mut elements = 1_usize;
    // An axis of 0 must not hide a product that does not fit.
    let mut extent = 1_usize;
    for dim in dims {
        let dim = usize::try_from(*dim).ok()?;
        extent = extent.checked_mul(dim.max(1)).filter(|extent| *extent <= MAX_ELEMENTS)?;
        elements *= dim;
    }
    Some(elements)
}

/// Checks that a tensor's data is within the file and fits its shape.
pub(super) fn check(tensor: &TensorProto, place: &str) -> Result<()> {
    if tensor.data_location == Some(DataLocation::External as i32) || !tensor.external_data.is_empty() {
        return Err(format(
            format!("the data of {place} is in another file"),
            "save it as one file, with onnx.save_model(model, path, save_as_external_data=False)",
        ));
    }
    if tensor.segment.is_some() {
        return Err(format(format!("{place} is a part of a tensor"), EXPORT));
    }
    if tensor.dims.len() > MAX_RANK {
        return Err(format(format!("{place} has {} axes, more than {MAX_RANK}", tensor.dims.len()), EXPORT));
    }
    let Some(elements) = elements(&tensor.dims) else {
        return Err(format(format!("{place} has the impossible shape {:?}", tensor.dims), COPY));
    };
    let Ok(data_type) = DataType::try_from(tensor.data_type) else {
        return Err(format(format!("{place} is of {}", type_name(tensor.data_type)), EXPORT));
    };
    let layout = Layout::of(data_type);
    let Some((expected, found)) = layout.lengths(tensor, elements) else {
        return Err(format(format!("{place} has data of several types, or none"), COPY));
    };
    if expected != found {
        let reason = format!(
            "{place} of {} and shape {:?} needs {expected} {}, and has {found}",
            type_name(tensor.data_type),
            tensor.dims,
            if tensor.raw_data.is_empty() { "values" } else { "bytes" },
        );
        return Err(format(reason, COPY));
    }
    Ok(())
}

/// Where the elements of a type are stored.
struct Layout {
    /// Bits of an element in `raw_data`; none where they may not be there.
    raw_bits: Option<usize>,
    /// The field for the typed form.
    field: TypedField,
    /// Elements for each value of that field, as a fraction: complex numbers take two, numbers of four bits a half.
    per_element: (usize, usize),
}

#[derive(Clone, Copy, PartialEq)]
enum TypedField {
    Float,
    Int32,
    Int64,
    Uint64,
    Double,
    String,
    None,
}

impl Layout {
    fn of(data_type: DataType) -> Self {
        use DataType as D;
        use TypedField as T;
        let (raw_bits, field, per_element) = match data_type {
            D::Float => (Some(32), T::Float, (1, 1)),
            D::Complex64 => (Some(64), T::Float, (2, 1)),
            D::Double => (Some(64), T::Double, (1, 1)),
            D::Complex128 => (Some(128), T::Double, (2, 1)),
            D::Int64 => (Some(64), T::Int64, (1, 1)),
            D::Uint32 => (Some(32), T::Uint64, (1, 1)),
            D::Uint64 => (Some(64), T::Uint64, (1, 1)),
            D::Int32 => (Some(32), T::Int32, (1, 1)),
            D::Int16 | D::Uint16 | D::Float16 | D::Bfloat16 => (Some(16), T::Int32, (1, 1)),
            D::Int8 | D::Uint8 | D::Bool => (Some(8), T::Int32, (1, 1)),
            D::Float8e4m3fn | D::Float8e4m3fnuz | D::Float8e5m2 | D::Float8e5m2fnuz => {
                (Some(8), T::Int32, (1, 1))
            }
            D::Int4 | D::Uint4 | D::Float4e2m1 => (Some(4), T::Int32, (1, 2)),
            D::String => (None, T::String, (1, 1)),
            D::Undefined => (None, T::None, (0, 1)),
        };
        Self { raw_bits, field, per_element }
    }

    /// The length that the data should have and the one it has; none where it is in more than one field, or in a wrong
    /// one.
    fn lengths(&self, tensor: &TensorProto, elements: usize) -> Option<(usize, usize)> {
        let fields = [
            (TypedField::Float, tensor.float_data.len()),
            (TypedField::Int32, tensor.int32_data.len()),
            (TypedField::Int64, tensor.int64_data.len()),
            (TypedField::Uint64, tensor.uint64_data.len()),
            (TypedField::Double, tensor.double_data.len()),
            (TypedField::String, tensor.string_data.len()),
        ];
        let others = |field| fields.iter().any(|(name, length)| *name != field && *length > 0);
        if !tensor.raw_data.is_empty() {
            let bits = self.raw_bits.filter(|_| !others(TypedField::None))?;
            return Some((elements.checked_mul(bits)?.div_ceil(8), tensor.raw_data.len()));
        }
        if self.field == TypedField::None || others(self.field) {
            return None;
        }
        let (values, of) = self.per_element;
        let found = fields.iter().find(|(name, _)| *name == self.field).map_or(0, |(_, length)| *length);
        Some((elements.checked_mul(values)?.div_ceil(of), found))
    }
}
