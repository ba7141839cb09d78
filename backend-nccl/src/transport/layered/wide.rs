//! Halves as f32, for a sum that is formed in steps.

use half::{bf16, f16};

use crate::transport::{DType, ReduceOp};

/// Whether `op` on this type would be rounded, or leave the range of the type, at each step on its way.
pub(super) fn needs_width(dtype: DType, op: ReduceOp) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
        && matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product)
}

/// Every element of a half type as f32, which holds each of them.
pub(super) fn widen(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let mut wide = vec![0; 2 * bytes.len()];
    match dtype {
        DType::BF16 => each(bytes, &mut wide, |half| bf16::from_ne_bytes(half).to_f32().to_ne_bytes()),
        _ => each(bytes, &mut wide, |half| f16::from_ne_bytes(half).to_f32().to_ne_bytes()),
    }
    wide
}

/// Rounds every element to the nearest of a half type.
pub(super) fn narrow(dtype: DType, wide: &[u8], bytes: &mut [u8]) {
    match dtype {
        DType::BF16 => each(wide, bytes, |sum| bf16::from_f32(f32::from_ne_bytes(sum)).to_ne_bytes()),
        _ => each(wide, bytes, |sum| f16::from_f32(f32::from_ne_bytes(sum)).to_ne_bytes()),
    }
}

fn each<const A: usize, const B: usize>(from: &[u8], to: &mut [u8], convert: impl Fn([u8; A]) -> [u8; B]) {
    let elements = from.as_chunks().0.iter().zip(to.as_chunks_mut().0);
    elements.for_each(|(from, to)| *to = convert(*from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_widened_reads_the_same_and_what_is_narrowed_is_the_nearest() {
        let halves = [1.5f32, -65504.0, f32::INFINITY].map(f16::from_f32);
        let bytes: Vec<u8> = halves.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let wide = widen(DType::F16, &bytes);
        assert_eq!(wide, [1.5f32, -65504.0, f32::INFINITY].map(f32::to_ne_bytes).concat());
        let mut back = vec![0; bytes.len()];
        narrow(DType::F16, &wide, &mut back);
        assert_eq!(back, bytes);
        // 257 lies between the even neighbours 256 and 258 of bf16; the tie goes to the even mantissa.
        let mut back = [0; 4];
        narrow(DType::BF16, &[257.0f32, 1e38].map(f32::to_ne_bytes).concat(), &mut back);
        assert_eq!(back, [bf16::from_f32(256.0), bf16::from_f32(1e38)].map(bf16::to_ne_bytes).concat()[..]);
        assert_eq!(widen(DType::BF16, &back)[..4], 256.0f32.to_ne_bytes());
    }

    #[test]
    fn only_what_is_rounded_needs_it() {
        assert!(needs_width(DType::F16, ReduceOp::Mean) && needs_width(DType::BF16, ReduceOp::Product));
        assert!(!needs_width(DType::F16, ReduceOp::Max) && !needs_width(DType::F32, ReduceOp::Sum));
    }
}
