//! Kernels over gradients in host memory: each reads its values once, in blocks that stay in the first-level cache.

use std::ops::{Add, AddAssign, Mul};

use bytemuck::Pod;

use crate::ops::GradientNorm;

/// Elements of a block: 4 KiB of f32.
const BLOCK: usize = 1024;
/// Independent sums, so that the additions of one vector register do not wait for each other.
const LANES: usize = 32;

/// A float that has kernels.
pub(crate) trait Real:
    Pod + PartialOrd + Default + Add<Output = Self> + AddAssign + Mul<Output = Self>
{
    const ONE: Self;
    /// Without a branch and without a call, so that loops over it become vector instructions.
    fn is_non_finite(self) -> bool;
    fn is_not_a_number(self) -> bool;
    fn magnitude(self) -> Self;
    fn wide(self) -> f64;
}

impl Real for f32 {
    const ONE: Self = 1.0;

    fn is_non_finite(self) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        self.to_bits() & EXPONENT == EXPONENT
    }

    fn is_not_a_number(self) -> bool {
        self.is_nan()
    }

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn wide(self) -> f64 {
        self.into()
    }
}

impl Real for f64 {
    const ONE: Self = 1.0;

    fn is_non_finite(self) -> bool {
        const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
        self.to_bits() & EXPONENT == EXPONENT
    }

    fn is_not_a_number(self) -> bool {
        self.is_nan()
    }

    fn magnitude(self) -> Self {
        self.abs()
    }

    fn wide(self) -> f64 {
        self
    }
}

/// Whether no value is infinite or NaN.
pub(crate) fn all_finite<T: Real>(values: &[T]) -> bool {
    values.chunks(BLOCK).all(block_is_finite)
}

fn block_is_finite<T: Real>(block: &[T]) -> bool {
    !block.iter().fold(false, |found, value| found | value.is_non_finite())
}

/// Multiplies in place; returns whether all products are finite.
pub(crate) fn scale<T: Real>(values: &mut [T], factor: T) -> bool {
    let mut finite = true;
    for block in values.chunks_mut(BLOCK) {
        let mut bad = 0u32;
        for value in block {
            *value = *value * factor;
            bad |= u32::from(value.is_non_finite());
        }
        finite &= bad == 0;
    }
    finite
}

/// As [`scale`], into new memory.
pub(crate) fn scaled<T: Real>(values: &[T], factor: T) -> (Vec<T>, bool) {
    let mut products = Vec::with_capacity(values.len());
    let mut finite = true;
    for block in values.chunks(BLOCK) {
        let start = products.len();
        products.extend(block.iter().map(|&value| value * factor));
        finite &= block_is_finite(&products[start..]);
    }
    (products, finite)
}

/// The norm of `values`, NaN if one of them is.
pub(crate) fn norm<T: Real>(values: &[T], norm: GradientNorm) -> f64 {
    match norm {
        GradientNorm::L1 => sum(values, T::magnitude),
        GradientNorm::L2 => sum(values, |value| value * value).sqrt(),
        GradientNorm::Max => {
            // A NaN replaces what was there, and nothing is greater than it.
            let greater =
                |most: T, value: T| if (value > most) | value.is_not_a_number() { value } else { most };
            let most = |most: f64, value: f64| if value > most || value.is_nan() { value } else { most };
            let lanes = values.chunks(BLOCK).flat_map(|block| fold(block, T::magnitude, greater));
            lanes.map(T::wide).fold(0.0, most)
        }
    }
}

/// The sum of a term of each value: in the type itself within a block, in f64 over the blocks.
fn sum<T: Real>(values: &[T], term: impl Fn(T) -> T) -> f64 {
    let of_block = |block| fold(block, &term, |sum, term| sum + term).map(T::wide).iter().sum::<f64>();
    values.chunks(BLOCK).map(of_block).sum()
}

fn fold<T: Real>(block: &[T], term: impl Fn(T) -> T, join: impl Fn(T, T) -> T) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    let mut groups = block.chunks_exact(LANES);
    for group in &mut groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = join(*lane, term(value));
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(groups.remainder()) {
        *lane = join(*lane, term(value));
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a block and no multiple of the lanes.
    const LENGTH: usize = 2 * BLOCK + LANES + 7;

    fn wave() -> Vec<f32> {
        (0..LENGTH).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    #[test]
    fn scaling_multiplies_every_element_in_place_and_into_new_memory() {
        let expected: Vec<f32> = wave().iter().map(|value| value * 0.3).collect();
        let mut values = wave();
        assert!(scale(&mut values, 0.3));
        assert_eq!(values, expected);
        assert_eq!(scaled(&wave(), 0.3), (expected, true));
    }

    #[test]
    fn one_bad_value_is_found_at_any_place() {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for at in [0, BLOCK - 1, BLOCK, LENGTH - 1] {
                let mut values = wave();
                values[at] = bad;
                assert!(!all_finite(&values), "{bad} at {at}");
                assert!(!scaled(&values, 0.5).1, "{bad} at {at}");
                assert!(!scale(&mut values, 0.5), "{bad} at {at}");
            }
        }
        assert!(all_finite(&[f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -0.0]));
        assert!(all_finite(&[f64::MAX, 1e-320]) && !all_finite(&[f64::NAN]) && !all_finite(&[f64::INFINITY]));
    }

    #[test]
    fn a_product_beyond_the_type_is_found() {
        assert!(!scale(&mut [3e38f32], 2.0));
        assert!(scale(&mut [3e38f64], 2.0));
    }

    #[test]
    fn norms_are_those_of_their_definition() {
        let wide: Vec<f64> = wave().into_iter().map(f64::from).collect();
        let squares = wide.iter().map(|value| value * value).sum::<f64>().sqrt();
        let sum: f64 = wide.iter().map(|value| value.abs()).sum();
        let most = wide.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        assert!((norm(&wave(), GradientNorm::L2) / squares - 1.0).abs() < 1e-6);
        assert!((norm(&wave(), GradientNorm::L1) / sum - 1.0).abs() < 1e-6);
        assert_eq!(norm(&wave(), GradientNorm::Max), most);
    }

    #[test]
    fn a_nan_reaches_every_norm_from_any_place() {
        for at in [0, 1, LANES, BLOCK, LENGTH - 1] {
            let mut values = wave();
            values[at] = f32::NAN;
            for kind in [GradientNorm::L1, GradientNorm::L2, GradientNorm::Max] {
                assert!(norm(&values, kind).is_nan(), "{kind:?} with a NaN at {at}");
            }
        }
    }
}
