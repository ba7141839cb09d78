//! Host reduction kernels: fold the ranks' versions of a chunk, in rank order.
//!
//! The fold goes block by block through an accumulator that stays in the first-level cache. f16 and bf16 accumulate
//! in f32 and are rounded once, so the error does not grow with the number of ranks.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::{DType, ReduceOp};

/// Elements of one accumulator block: 4 KiB of f32.
const BLOCK: usize = 1024;

/// Folds `own` (the version of `rank`) and `others` (all other ranks' versions in rank order) into `own`.
///
/// Lengths are bytes, equal, and a multiple of the element size; nothing needs to be aligned.
pub(crate) fn fold(dtype: DType, op: ReduceOp, own: &mut [u8], rank: usize, others: &[&[u8]]) {
    match dtype {
        DType::F32 => fold_as::<f32>(op, own, rank, others),
        DType::F64 => fold_as::<f64>(op, own, rank, others),
        DType::F16 => fold_as::<f16>(op, own, rank, others),
        DType::BF16 => fold_as::<bf16>(op, own, rank, others),
        DType::I32 => fold_as::<i32>(op, own, rank, others),
        DType::I64 => fold_as::<i64>(op, own, rank, others),
        DType::U8 => fold_as::<u8>(op, own, rank, others),
    }
}

fn fold_as<T: Element>(op: ReduceOp, own: &mut [u8], rank: usize, others: &[&[u8]]) {
    let world_size = others.len() + 1;
    match op {
        ReduceOp::Sum => fold_with::<T>(own, rank, others, T::Wide::add, |_| {}),
        ReduceOp::Mean => {
            fold_with::<T>(own, rank, others, T::Wide::add, |sum| T::Wide::divide(sum, world_size))
        }
        ReduceOp::Min => fold_with::<T>(own, rank, others, T::Wide::least, |_| {}),
        ReduceOp::Max => fold_with::<T>(own, rank, others, T::Wide::greatest, |_| {}),
        ReduceOp::Product => fold_with::<T>(own, rank, others, T::Wide::multiply, |_| {}),
    }
}

fn fold_with<T: Element>(
    own: &mut [u8],
    rank: usize,
    others: &[&[u8]],
    combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
    finish: impl Fn(&mut [T::Wide]),
) {
    let mut sum = [T::Wide::zeroed(); BLOCK];
    let mut term = [T::Wide::zeroed(); BLOCK];
    let mut spare = [T::zeroed(); BLOCK];
    let block_bytes = BLOCK * size_of::<T>();
    for start in (0..own.len()).step_by(block_bytes) {
        let range = start..own.len().min(start + block_bytes);
        let count = range.len() / size_of::<T>();
        let (sum, term) = (&mut sum[..count], &mut term[..count]);
        for index in 0..=others.len() {
            let version = match index.cmp(&rank) {
                std::cmp::Ordering::Less => &others[index][range.clone()],
                std::cmp::Ordering::Equal => &own[range.clone()],
                std::cmp::Ordering::Greater => &others[index - 1][range.clone()],
            };
            let version = elements(version, &mut spare);
            if index == 0 {
                T::widen(version, sum);
            } else if let Some(version) = T::as_wide(version) {
                sum.iter_mut().zip(version).for_each(|(a, b)| *a = combine(*a, *b));
            } else {
                T::widen(version, term);
                sum.iter_mut().zip(&*term).for_each(|(a, b)| *a = combine(*a, *b));
            }
        }
        finish(sum);
        let narrow = &mut spare[..count];
        T::narrow(sum, narrow);
        own[range].copy_from_slice(bytemuck::cast_slice(narrow));
    }
}

/// The bytes as elements, copied to `spare` only when they are not aligned.
fn elements<'a, T: Pod>(bytes: &'a [u8], spare: &'a mut [T; BLOCK]) -> &'a [T] {
    if let Ok(elements) = bytemuck::try_cast_slice(bytes) {
        return elements;
    }
    let spare = &mut spare[..bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut::<T, u8>(spare).copy_from_slice(bytes);
    spare
}

/// An element as it is stored.
trait Element: Pod {
    /// The type it accumulates in.
    type Wide: Wide;
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
    /// The slice itself where no widening is needed: saves a pass.
    fn as_wide(from: &[Self]) -> Option<&[Self::Wide]>;
}

/// A type that reductions are computed in.
trait Wide: Pod {
    fn add(a: Self, b: Self) -> Self;
    fn multiply(a: Self, b: Self) -> Self;
    fn least(a: Self, b: Self) -> Self;
    fn greatest(a: Self, b: Self) -> Self;
    fn divide(sums: &mut [Self], by: usize);
}

macro_rules! element_of_its_own_width {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Wide = Self;
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn as_wide(from: &[Self]) -> Option<&[Self]> {
                Some(from)
            }
        }
    )*};
}

macro_rules! element_in_f32 {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Wide = f32;
            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
            fn as_wide(_: &[Self]) -> Option<&[f32]> {
                None
            }
        }
    )*};
}

macro_rules! wide_float {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            fn add(a: Self, b: Self) -> Self {
                a + b
            }
            fn multiply(a: Self, b: Self) -> Self {
                a * b
            }
            // Written so that a NaN on either side wins: the standard `min` and `max` would hide it.
            fn least(a: Self, b: Self) -> Self {
                if a < b || a.is_nan() { a } else { b }
            }
            fn greatest(a: Self, b: Self) -> Self {
                if a > b || a.is_nan() { a } else { b }
            }
            fn divide(sums: &mut [Self], by: usize) {
                let by = by as Self;
                // A power of two has an exact reciprocal, and a product costs a fifth of a quotient.
                if (by as usize).is_power_of_two() {
                    sums.iter_mut().for_each(|sum| *sum *= by.recip());
                } else {
                    sums.iter_mut().for_each(|sum| *sum /= by);
                }
            }
        }
    )*};
}

macro_rules! wide_integer {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            fn multiply(a: Self, b: Self) -> Self {
                a.wrapping_mul(b)
            }
            fn least(a: Self, b: Self) -> Self {
                a.min(b)
            }
            fn greatest(a: Self, b: Self) -> Self {
                a.max(b)
            }
            fn divide(_: &mut [Self], _: usize) {
                unreachable!("the group refuses the mean of integers before it reaches a transport")
            }
        }
    )*};
}

element_of_its_own_width!(f32, f64, i32, i64, u8);
element_in_f32!(f16, bf16);
wide_float!(f32, f64);
wide_integer!(i32, i64, u8);

#[cfg(test)]
mod tests {
    use super::*;

    fn fold_values<T: Pod>(dtype: DType, op: ReduceOp, rank: usize, versions: &[Vec<T>]) -> Vec<T> {
        let mut own = versions[rank].clone();
        let others: Vec<&[u8]> = versions
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != rank)
            .map(|(_, version)| bytemuck::cast_slice(version))
            .collect();
        fold(dtype, op, bytemuck::cast_slice_mut(&mut own), rank, &others);
        own
    }

    #[test]
    fn halves_accumulate_in_f32_and_are_rounded_once() {
        // 2048 + 1 is 2048 in f16; four times 1 survive only if the sum is wider than f16.
        let versions: Vec<_> = [2048.0, 1.0, 1.0, 1.0, 1.0].map(|v| vec![f16::from_f32(v); 3]).into();
        for rank in 0..5 {
            assert_eq!(
                fold_values(DType::F16, ReduceOp::Sum, rank, &versions),
                vec![f16::from_f32(2052.0); 3]
            );
        }
        let versions: Vec<_> = [256.0, 1.0, 1.0].map(|v| vec![bf16::from_f32(v); 2]).into();
        assert_eq!(fold_values(DType::BF16, ReduceOp::Sum, 1, &versions), vec![bf16::from_f32(258.0); 2]);
    }

    #[test]
    fn every_rank_folds_in_rank_order() {
        // (1e8 + -1e8) + 1 = 1, while 1e8 + (-1e8 + 1) = 0 in f32.
        let versions = [vec![1e8f32], vec![-1e8], vec![1.0]];
        for rank in 0..3 {
            assert_eq!(fold_values(DType::F32, ReduceOp::Sum, rank, &versions), [1.0]);
        }
    }

    #[test]
    fn nan_on_any_rank_is_seen_in_min_and_max() {
        for versions in [[vec![f32::NAN], vec![1.0]], [vec![1.0], vec![f32::NAN]]] {
            assert!(fold_values(DType::F32, ReduceOp::Max, 0, &versions)[0].is_nan());
            assert!(fold_values(DType::F32, ReduceOp::Min, 1, &versions)[0].is_nan());
        }
    }

    #[test]
    fn integers_wrap_and_the_mean_of_three_is_a_quotient() {
        assert_eq!(fold_values(DType::U8, ReduceOp::Sum, 0, &[vec![200u8], vec![100]]), [44]);
        assert_eq!(fold_values(DType::I32, ReduceOp::Product, 1, &[vec![i32::MAX], vec![2]]), [-2]);
        let mean = fold_values(DType::F64, ReduceOp::Mean, 2, &[vec![1.0f64], vec![2.0], vec![7.0]]);
        assert_eq!(mean, [10.0 / 3.0]);
    }

    #[test]
    fn unaligned_buffers_give_the_same_result() {
        let count = BLOCK + 37;
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let mut own = vec![0u8; count * 4 + 1];
        own[1..].copy_from_slice(bytemuck::cast_slice(&values));
        let mut other = vec![0u8; count * 4 + 3];
        other[3..].copy_from_slice(bytemuck::cast_slice(&values));
        fold(DType::F32, ReduceOp::Sum, &mut own[1..], 0, &[&other[3..]]);
        let sums: Vec<f32> =
            own[1..].chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
        assert!(sums.iter().enumerate().all(|(i, sum)| *sum == 2.0 * i as f32));
    }
}
