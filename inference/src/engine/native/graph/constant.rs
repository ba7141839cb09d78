//! Tensors of the file, widened to f32 only when they are asked for: a network's weights are never held twice.

use half::bf16;
use tract_onnx::pb::TensorProto;
use tract_onnx::pb::tensor_proto::DataType;

use crate::onnx::{byte_values, f16_values, f32_values};

/// A tensor whose values are in the file.
#[derive(Clone)]
pub(in super::super) struct Constant<'a> {
    tensor: &'a TensorProto,
    dims: Vec<usize>,
    quantisation: Option<Quantisation<'a>>,
}

/// `x = (q - zero) * scale`.
#[derive(Clone, Copy)]
struct Quantisation<'a> {
    /// One, or one for each place of an axis. Any number of nodes may name the same, so that they stay in the file.
    scale: &'a TensorProto,
    /// As many.
    zero: Option<&'a TensorProto>,
    /// Values that share a scale, one after another.
    run: usize,
}

impl<'a> Constant<'a> {
    /// A tensor whose values are as many as its shape says.
    pub(super) fn new(tensor: &'a TensorProto) -> Result<Self, String> {
        let name = &tensor.name;
        let dims = tensor.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
        let dims = dims.ok_or_else(|| format!("the shape of `{name}` has negative sizes"))?;
        let wanted = dims.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
        let found = count(tensor).ok_or_else(|| {
            let kind = DataType::try_from(tensor.data_type).map_or("unknown", |kind| kind.as_str_name());
            format!("`{name}` holds values of type {kind}, or outside of the file")
        })?;
        if wanted != Some(found) {
            return Err(format!("`{name}` has {found} values, its shape {dims:?} others"));
        }
        Ok(Self { tensor, dims, quantisation: None })
    }

    /// The shape.
    pub(in super::super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// The values of quantised ones.
    pub(super) fn dequantised(&self, scale: &Self, zero: Option<&Self>, axis: i64) -> Result<Self, String> {
        let small = matches!(self.kind(), DataType::Int8 | DataType::Uint8);
        if self.quantisation.is_some() || !small {
            return Err("its values are not of 8 bits".to_owned());
        }
        let run = if scale.len() == 1 {
            self.len().max(1)
        } else {
            let axis = if axis < 0 { axis + self.dims.len() as i64 } else { axis };
            let axis = usize::try_from(axis).ok().filter(|&axis| self.dims.get(axis) == Some(&scale.len()));
            match axis {
                Some(axis) => self.dims[axis + 1..].iter().product(),
                None => return Err("it has neither one scale nor one for each place of its axis".to_owned()),
            }
        };
        if scale.quantisation.is_some() || zero.is_some_and(|zero| zero.quantisation.is_some()) {
            return Err("its scales or zero points are of 8 bits themselves".to_owned());
        }
        if zero.is_some_and(|zero| zero.len() != scale.len()) {
            return Err("its zero points are not as many as its scales".to_owned());
        }
        let quantisation =
            Quantisation { scale: scale.tensor, zero: zero.map(|zero| zero.tensor), run: run.max(1) };
        Ok(Self { quantisation: Some(quantisation), ..self.clone() })
    }

    /// The type of the values.
    fn kind(&self) -> DataType {
        kind(self.tensor)
    }

    /// Whether the values are real numbers.
    pub(super) fn is_float(&self) -> bool {
        let float = [DataType::Float, DataType::Float16, DataType::Bfloat16, DataType::Double];
        self.quantisation.is_some() || float.contains(&self.kind())
    }

    /// The values in f32.
    pub(in super::super) fn values(&self) -> Vec<f32> {
        let mut values = widen(self.tensor);
        if let Some(Quantisation { scale, zero, run }) = self.quantisation {
            let scale = widen(scale);
            let zero = zero.map_or_else(|| vec![0.; scale.len()], widen);
            for (values, at) in values.chunks_mut(run).zip((0..scale.len()).cycle()) {
                for value in values {
                    *value = (*value - zero[at]) * scale[at];
                }
            }
        }
        values
    }

    /// Whole numbers, such as shapes are.
    pub(super) fn integers(&self) -> Option<Vec<i64>> {
        let raw = &self.tensor.raw_data;
        match self.kind() {
            DataType::Int64 if raw.is_empty() => Some(self.tensor.int64_data.clone()),
            DataType::Int64 => Some(words(raw, i64::from_le_bytes).collect()),
            DataType::Int32 if raw.is_empty() => {
                Some(self.tensor.int32_data.iter().copied().map(i64::from).collect())
            }
            DataType::Int32 => Some(words(raw, i32::from_le_bytes).map(i64::from).collect()),
            _ => None,
        }
    }
}

/// The words of raw data, which is little-endian.
fn words<'b, const SIZE: usize, T>(
    raw: &'b [u8],
    word: impl Fn([u8; SIZE]) -> T + 'b,
) -> impl Iterator<Item = T> + 'b {
    raw.as_chunks().0.iter().map(move |bytes| word(*bytes))
}

/// How many values there are; none for a type that is not used here, and for values in another file.
fn count(tensor: &TensorProto) -> Option<usize> {
    if tensor.data_location.unwrap_or(0) != 0 || tensor.segment.is_some() {
        return None;
    }
    let (size, typed) = match DataType::try_from(tensor.data_type).ok()? {
        DataType::Float => (4, tensor.float_data.len()),
        DataType::Double => (8, tensor.double_data.len()),
        DataType::Float16 | DataType::Bfloat16 => (2, tensor.int32_data.len()),
        DataType::Int8 | DataType::Uint8 => (1, tensor.int32_data.len()),
        DataType::Int32 => (4, tensor.int32_data.len()),
        DataType::Int64 => (8, tensor.int64_data.len()),
        _ => return None,
    };
    let raw = &tensor.raw_data;
    match raw.len() {
        0 => Some(typed),
        bytes => bytes.is_multiple_of(size).then_some(bytes / size),
    }
}

fn kind(tensor: &TensorProto) -> DataType {
    DataType::try_from(tensor.data_type).unwrap_or_default()
}

/// The values in f32; of a type that [`count`] does not know, none.
fn widen(tensor: &TensorProto) -> Vec<f32> {
    if let Some(values) = f32_values(tensor) {
        return values.into_owned();
    }
    if let Some(values) = f16_values(tensor) {
        return values.collect();
    }
    if let Some(values) = byte_values(tensor) {
        return values.map(|value| value as f32).collect();
    }
    let raw = tensor.raw_data.as_slice();
    let ints = &tensor.int32_data;
    match (kind(tensor), raw.is_empty()) {
        (DataType::Double, true) => tensor.double_data.iter().map(|&value| value as f32).collect(),
        (DataType::Double, false) => words(raw, f64::from_le_bytes).map(|value| value as f32).collect(),
        (DataType::Bfloat16, true) => {
            ints.iter().map(|&bits| bf16::from_bits(bits as u16).to_f32()).collect()
        }
        (DataType::Bfloat16, false) => words(raw, |bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        (DataType::Int32, false) => words(raw, i32::from_le_bytes).map(|value| value as f32).collect(),
        (DataType::Int32, true) => ints.iter().map(|&value| value as f32).collect(),
        (DataType::Int64, true) => tensor.int64_data.iter().map(|&value| value as f32).collect(),
        (DataType::Int64, false) => words(raw, i64::from_le_bytes).map(|value| value as f32).collect(),
        _ => Vec::new(),
    }
}
