//! Values from a formula, and the values of a model.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

/// A number in `[-1, 1)` that depends on `index` alone, without visible pattern.
///
/// Source: SplitMix64 of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
pub(crate) fn noise(index: u64) -> f64 {
    let mut x = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Gives the convolutions and the classifier of `model` values from a formula, of the size that a random start has.
pub(crate) fn fill<M: Module>(model: M) -> M {
    model.map(&mut Fill(0))
}

struct Fill(u64);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Only norm layers have vectors here: ones and zeros, which need no formula.
        if D == 1 {
            return param;
        }
        let next = &mut self.0;
        param.map(|tensor| {
            let shape = tensor.dims();
            // The values that one output sums over, convolution or not.
            let fan_in = (shape.iter().product::<usize>() / shape[0]) as f64;
            let values = (0..shape.iter().product::<usize>()).map(|_| {
                *next += 1;
                ((2.0 / fan_in).sqrt() * noise(*next)) as f32
            });
            let data = TensorData::new(values.collect::<Vec<_>>(), shape);
            let requires_grad = tensor.is_require_grad();
            Tensor::from_data(data, &tensor.device()).set_require_grad(requires_grad)
        })
    }
}

/// All trainable parameters of `model`, in visit order.
pub(crate) fn collect<M: Module>(model: &M) -> Vec<f32> {
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

struct Collect(Vec<f32>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }
}

/// `|a - b| / |b|`, in Euclid's norm; infinite where they have different lengths or are no numbers.
pub(crate) fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
    let ratio = (difference / size).sqrt();
    if a.len() == b.len() && ratio.is_finite() { ratio } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relative_difference_sees_lengths_and_nan() {
        assert_eq!(relative_difference(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_difference(&[6.0, 8.0], &[3.0, 4.0]), 1.0);
        assert_eq!(relative_difference(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(relative_difference(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(relative_difference(&[0.0], &[0.0]), f64::INFINITY, "nothing was compared");
    }
}
