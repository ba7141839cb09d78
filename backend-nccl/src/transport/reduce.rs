//! Host reduction kernels: fold the ranks' versions of a chunk, in rank order.
//!
//! One pass reads every version once and writes the result to every place that needs it, a tile of a few vector
//! registers at a time. f16 and bf16 accumulate in f32 and are rounded once, so the error does not grow with the number
//! of ranks.

mod element;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::{DType, ReduceOp};

/// Folds `own` (the version of `rank`) and `others` (all other ranks' versions in rank order) into `own`.
///
/// Lengths are bytes, equal, and a multiple of the element size; nothing needs to be aligned.
pub(crate) fn fold(dtype: DType, op: ReduceOp, own: &mut [u8], rank: usize, others: &[&[u8]]) {
    assert!(others.iter().all(|other| other.len() == own.len()), "versions have one length");
    let mut sources: Vec<*const u8> = others.iter().map(|other| other.as_ptr()).collect();
    sources.insert(rank, own.as_ptr());
    // SAFETY: every pointer is to `own.len()` bytes that are borrowed here, and the target is one of the sources.
    unsafe { fold_into(dtype, op, &sources, &[own.as_mut_ptr()], own.len()) }
}

/// Folds `sources`, which are all ranks' versions in rank order, and writes the result to each of `targets`.
///
/// The length is in bytes and a multiple of the element size; nothing needs to be aligned.
///
/// # Safety
///
/// Every pointer is valid for `len` bytes, and nobody else writes to the sources or touches the targets meanwhile. A
/// target may be one of the sources, but must not overlap one in any other way.
pub(crate) unsafe fn fold_into(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    len: usize,
) {
    debug_assert!(!sources.is_empty() && len.is_multiple_of(dtype.size_bytes()));
    // SAFETY: handed on to the caller.
    unsafe { kernel::run(dtype, op, sources, targets, len / dtype.size_bytes()) }
}

#[cfg(test)]
mod tests {
    use bytemuck::Pod;
    use half::{bf16, f16};

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
        let count = 1024 + 37;
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
