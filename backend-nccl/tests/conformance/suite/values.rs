//! What each rank puts into a buffer, and what must come out: formulas of rank, world size and index.

use std::ops::Range;

use burn_nccl::{DType, ReduceOp};
use half::{bf16, f16};

/// Values repeat after a prime number of elements, so that no chunk, segment or block can be taken for another, while
/// a long buffer is filled by copying.
const PERIOD: usize = 4099;

/// One element, in the widest type of its kind.
#[derive(Clone, Copy)]
enum Number {
    Integer(i64),
    Float(f64),
}

/// The element `index` of the buffer of `rank` before an operation.
///
/// Integers use the whole range of their type, so that sums and products wrap. Floats are small whole numbers, so that
/// every sum and product of up to eight is exact in f32, and is rounded once in f16 and bf16.
fn number(dtype: DType, op: ReduceOp, rank: usize, index: usize) -> Number {
    let random = scramble((index % PERIOD) as u64 ^ (rank as u64) << 40);
    if !dtype.is_float() {
        return Number::Integer(wrapped(dtype, random as i64));
    }
    Number::Float(match op {
        ReduceOp::Product => [-2.0, -1.0, 1.0, 2.0, 3.0][(random % 5) as usize],
        // bf16 holds whole numbers up to 256.
        _ if dtype == DType::BF16 => (random % 257) as f64 - 128.0,
        _ => (random % 2001) as f64 - 1000.0,
    })
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn wrapped(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::I32 => i64::from(value as i32),
        _ => value,
    }
}

/// The value of one element after a reduction over `ranks` ranks.
fn reduced(dtype: DType, op: ReduceOp, ranks: usize, index: usize) -> Number {
    let numbers = (0..ranks).map(|rank| number(dtype, op, rank, index));
    if dtype.is_float() {
        let values = numbers.map(|number| match number {
            Number::Float(value) => value,
            Number::Integer(_) => unreachable!("a float type has floats"),
        });
        return Number::Float(match op {
            ReduceOp::Sum | ReduceOp::Mean => values.sum(),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Product => values.product(),
        });
    }
    let values = numbers.map(|number| match number {
        Number::Integer(value) => value,
        Number::Float(_) => unreachable!("an integer type has integers"),
    });
    // Wrapping to 64 bits and then to fewer is wrapping to fewer.
    Number::Integer(wrapped(
        dtype,
        match op {
            ReduceOp::Sum => values.fold(0, i64::wrapping_add),
            ReduceOp::Product => values.fold(1, i64::wrapping_mul),
            ReduceOp::Min => values.fold(i64::MAX, i64::min),
            ReduceOp::Max => values.fold(i64::MIN, i64::max),
            ReduceOp::Mean => unreachable!("the mean of integers is refused"),
        },
    ))
}

fn encode(bytes: &mut Vec<u8>, dtype: DType, number: Number) {
    match (dtype, number) {
        (DType::F32, Number::Float(value)) => bytes.extend((value as f32).to_ne_bytes()),
        (DType::F64, Number::Float(value)) => bytes.extend(value.to_ne_bytes()),
        (DType::F16, Number::Float(value)) => bytes.extend(f16::from_f64(value).to_ne_bytes()),
        (DType::BF16, Number::Float(value)) => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
        (DType::I32, Number::Integer(value)) => bytes.extend((value as i32).to_ne_bytes()),
        (DType::I64, Number::Integer(value)) => bytes.extend(value.to_ne_bytes()),
        (DType::U8, Number::Integer(value)) => bytes.push(value as u8),
        _ => unreachable!("a number is of the kind of its type"),
    }
}

/// The elements `range` of an endless buffer.
fn filled(dtype: DType, range: Range<usize>, number: impl Fn(usize) -> Number) -> Vec<u8> {
    let total = range.len() * dtype.size_bytes();
    let mut bytes = Vec::with_capacity(total);
    for index in range.start..range.start + range.len().min(PERIOD) {
        encode(&mut bytes, dtype, number(index));
    }
    // Whole periods at first, then the rest of one.
    while bytes.len() < total {
        bytes.extend_from_within(..bytes.len().min(total - bytes.len()));
    }
    bytes
}

/// The elements `range` of the buffer of `rank` before an operation.
pub(crate) fn before(dtype: DType, op: ReduceOp, rank: usize, range: Range<usize>) -> Vec<u8> {
    filled(dtype, range, |index| number(dtype, op, rank, index))
}

/// The elements `range` of the buffers of `ranks` ranks after they were reduced.
pub(crate) fn after(dtype: DType, op: ReduceOp, ranks: usize, range: Range<usize>) -> Vec<u8> {
    filled(dtype, range, |index| match (op, reduced(dtype, op, ranks, index)) {
        // The one result that has to be rounded: in f64 for f64, in f32 and then to the type for the others.
        (ReduceOp::Mean, Number::Float(sum)) if dtype == DType::F64 => Number::Float(sum / ranks as f64),
        (ReduceOp::Mean, Number::Float(sum)) => Number::Float(f64::from(sum as f32 / ranks as f32)),
        (_, number) => number,
    })
}

/// Every type with every reduction that is defined for it.
pub(crate) fn reductions() -> impl Iterator<Item = (DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| op.supports(*dtype))
}
