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
        block.iter_mut().for_each(|value| *value = *value * factor);
        finite &= block_is_finite(block);
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

/// The norm of `values`, NaN if one of them is. Blocks are summed in f64.
pub(crate) fn norm<T: Real>(values: &[T], norm: GradientNorm) -> f64 {
    let add = |sum: T, term: T| sum + term;
    let total = |term: fn(T) -> T| {
        values.chunks(BLOCK).map(|block| fold(block, term, add).map(T::wide).iter().sum::<f64>()).sum::<f64>()
    };
    match norm {
        GradientNorm::L1 => total(T::magnitude),
        GradientNorm::L2 => total(|value| value * value).sqrt(),
        GradientNorm::Max => {
            // A NaN replaces what was there, and nothing is greater than it.
            let greater =
                |most: T, value: T| if (value > most) | value.is_not_a_number() { value } else { most };
            let most = |most: f64, value: f64| if value > most || value.is_nan() { value } else { most };
            values
                .chunks(BLOCK)
                .flat_map(|block| fold(block, T::magnitude, greater))
                .map(T::wide)
                .fold(0.0, most)
        }
    }
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
