//! Numbers that every element type holds exactly, and what collectives make of them.

use half::{bf16, f16};

use crate::transport::{DType, ReduceOp};

/// What rank `rank` brings at place `index`: at most 9 for three ranks, so that no product exceeds 162.
pub(super) fn value(rank: usize, index: usize) -> f64 {
    ((rank + 1) * (index % 3 + 1)) as f64
}

/// The bytes of `len` elements of a rank.
pub(super) fn of(dtype: DType, rank: usize, len: usize) -> Vec<u8> {
    bytes(dtype, (0..len).map(|index| value(rank, index)))
}

/// The reduction over ranks at one place.
pub(super) fn reduced(op: ReduceOp, world_size: usize, index: usize) -> f64 {
    let values = (0..world_size).map(|rank| value(rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Mean => values.sum::<f64>() / world_size as f64,
        ReduceOp::Product => values.product(),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => values.fold(0.0, f64::max),
    }
}

/// Numbers as bytes of a type.
pub(super) fn bytes(dtype: DType, values: impl Iterator<Item = f64>) -> Vec<u8> {
    values
        .flat_map(|value| match dtype {
            DType::F32 => (value as f32).to_ne_bytes().to_vec(),
            DType::F64 => value.to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
            DType::I32 => (value as i32).to_ne_bytes().to_vec(),
            DType::I64 => (value as i64).to_ne_bytes().to_vec(),
            DType::U8 => vec![value as u8],
        })
        .collect()
}

/// The reductions of a type.
pub(super) fn reductions(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| dtype.is_float() || *op != ReduceOp::Mean)
}
