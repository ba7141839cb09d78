//! Reduces the contributions of all ranks, in the order of the ranks: half precision by way of f32, rounded once at the end.

use half::{bf16, f16};

use crate::datatype::{DataType, Reduction};

/// The reduction of byte strings of one length.
pub(crate) fn reduce(parts: &[Vec<u8>], dtype: DataType, op: Reduction) -> Vec<u8> {
    match dtype {
        DataType::I8 => integers(parts, op, i8::from_le_bytes, |value: i8| value.to_le_bytes()),
        DataType::U8 => integers(parts, op, u8::from_le_bytes, |value: u8| value.to_le_bytes()),
        DataType::I32 => integers(parts, op, i32::from_le_bytes, |value: i32| value.to_le_bytes()),
        DataType::U32 => integers(parts, op, u32::from_le_bytes, |value: u32| value.to_le_bytes()),
        DataType::I64 => integers(parts, op, i64::from_le_bytes, |value: i64| value.to_le_bytes()),
        DataType::U64 => integers(parts, op, u64::from_le_bytes, |value: u64| value.to_le_bytes()),
        DataType::F16 => {
            singles(parts, op, |b| f16::from_le_bytes(b).to_f32(), |v| f16::from_f32(v).to_le_bytes())
        }
        DataType::Bf16 => {
            singles(parts, op, |b| bf16::from_le_bytes(b).to_f32(), |v| bf16::from_f32(v).to_le_bytes())
        }
        DataType::F32 => singles(parts, op, f32::from_le_bytes, f32::to_le_bytes),
        DataType::F64 => {
            fold(parts, f64::from_le_bytes, f64::to_le_bytes, parts.len() as f64, op, |op, a, b| match op {
                Reduction::Sum | Reduction::Avg => a + b,
                Reduction::Prod => a * b,
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            })
        }
    }
}

fn singles<const N: usize>(
    parts: &[Vec<u8>],
    op: Reduction,
    read: impl Fn([u8; N]) -> f32,
    write: impl Fn(f32) -> [u8; N],
) -> Vec<u8> {
    fold(parts, read, write, parts.len() as f32, op, |op, a, b| match op {
        Reduction::Sum | Reduction::Avg => a + b,
        Reduction::Prod => a * b,
        Reduction::Max => a.max(b),
        Reduction::Min => a.min(b),
    })
}

/// Integers wrap as they do on a GPU, by way of the low bytes of a wider one; a mean is cut to a whole number.
fn integers<const N: usize, T: Copy + Into<i128> + TryFrom<i128>>(
    parts: &[Vec<u8>],
    op: Reduction,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let cut = |value: i128| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&value.to_le_bytes()[..N]);
        read(bytes)
    };
    let wide = |bytes: [u8; N]| -> i128 { read(bytes).into() };
    let narrow = |value: i128| write(cut(value));
    fold(parts, wide, narrow, parts.len() as i128, op, |op, a, b| match op {
        Reduction::Sum | Reduction::Avg => a + b,
        Reduction::Prod => cut(a.wrapping_mul(b)).into(),
        Reduction::Max => a.max(b),
        Reduction::Min => a.min(b),
    })
}

fn fold<const N: usize, T: Copy + std::ops::Div<Output = T>>(
    parts: &[Vec<u8>],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    ranks: T,
    op: Reduction,
    combine: impl Fn(Reduction, T, T) -> T,
) -> Vec<u8> {
    let element = |part: &Vec<u8>, index: usize| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&part[index * N..][..N]);
        read(bytes)
    };
    let count = parts.first().map_or(0, |part| part.len() / N);
    let one = |index| {
        let first = element(&parts[0], index);
        let value = parts[1..].iter().fold(first, |value, part| combine(op, value, element(part, index)));
        write(if op == Reduction::Avg { value / ranks } else { value })
    };
    (0..count).flat_map(one).collect()
}
