//! The numbers of a tensor that has been checked.

use std::borrow::Cow;

use half::f16;
use tract_onnx::pb::TensorProto;
use tract_onnx::pb::tensor_proto::DataType;

use super::tensor::F32;

/// The values of an f32 tensor; none for one of another type.
pub(crate) fn f32_values(tensor: &TensorProto) -> Option<Cow<'_, [f32]>> {
    if tensor.data_type != F32 {
        return None;
    }
    if tensor.raw_data.is_empty() {
        return Some(Cow::Borrowed(&tensor.float_data));
    }
    let (bytes, _) = tensor.raw_data.as_chunks();
    Some(Cow::Owned(bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

/// Replaces each value of an f32 tensor, in place, by what a function of its index makes of it.
pub(super) fn map_f32(tensor: &mut TensorProto, mut map: impl FnMut(usize, f32) -> f32) {
    for (index, value) in tensor.float_data.iter_mut().enumerate() {
        *value = map(index, *value);
    }
    let (bytes, _) = tensor.raw_data.as_chunks_mut();
    for (index, bytes) in bytes.iter_mut().enumerate() {
        *bytes = map(index, f32::from_le_bytes(*bytes)).to_le_bytes();
    }
}

/// A tensor of the type and shape whose bytes are given.
pub(super) fn tensor(name: String, data_type: DataType, dims: Vec<i64>, raw_data: Vec<u8>) -> TensorProto {
    TensorProto { name, dims, data_type: data_type as i32, raw_data, ..Default::default() }
}

/// An f32 tensor.
pub(super) fn f32_tensor(name: String, dims: Vec<i64>, values: impl Iterator<Item = f32>) -> TensorProto {
    tensor(name, DataType::Float, dims, values.flat_map(f32::to_le_bytes).collect())
}

/// The values of an f16 tensor in f32; none for one of another type.
pub(crate) fn f16_values(tensor: &TensorProto) -> Option<Box<dyn Iterator<Item = f32> + '_>> {
    if tensor.data_type != DataType::Float16 as i32 {
        return None;
    }
    if tensor.raw_data.is_empty() {
        return Some(Box::new(tensor.int32_data.iter().map(|bits| f16::from_bits(*bits as u16).to_f32())));
    }
    let (bytes, _) = tensor.raw_data.as_chunks();
    Some(Box::new(bytes.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32())))
}

/// The values of a tensor of 8 bits; none for one of another type.
pub(crate) fn byte_values(tensor: &TensorProto) -> Option<Box<dyn Iterator<Item = i32> + '_>> {
    let signed = match DataType::try_from(tensor.data_type) {
        Ok(DataType::Int8) => true,
        Ok(DataType::Uint8) => false,
        _ => return None,
    };
    if tensor.raw_data.is_empty() {
        return Some(Box::new(tensor.int32_data.iter().copied()));
    }
    let widen = move |byte: &u8| if signed { i32::from(*byte as i8) } else { i32::from(*byte) };
    Some(Box::new(tensor.raw_data.iter().map(widen)))
}
