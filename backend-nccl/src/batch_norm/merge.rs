//! The statistics of all ranks, merged where the tensors are: nothing is read to the host. Ranks are summed in an order that
//! only their number decides, and not by a reduction, whose order each rank's tuning would choose.

use std::ops::Range;

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType as BurnDType, Shape, Slice, TensorData};

use super::{Joined, reciprocal};
use crate::error::Result;
use crate::ops::{Call, CollectiveBackend};
use crate::transport::DType;

/// Gathers and merges the statistics of all ranks.
///
/// The numbers of values go by the host: they are known there, and a GPU need not be waited for. The statistics go as
/// tensors. Every rank runs the two in this order.
pub(super) fn gather<B: CollectiveBackend>(
    mean: FloatTensor<B>,
    squares: FloatTensor<B>,
    count: u64,
    call: &Call,
) -> Result<Joined<B>> {
    let mut counts = vec![0u64; call.group.world_size()];
    {
        let _site = call.enter();
        let counts = bytemuck::cast_slice_mut(&mut counts);
        call.group.all_gather(&count.to_ne_bytes(), counts, DType::I64)?;
    }
    let part = call.part();
    let gathered = B::group_all_gather(B::float_cat(vec![mean, squares], 0), part.clone());
    part.result()?;
    Ok(merge::<B>(gathered, &counts))
}

/// The statistics of all values, from `[mean | squares]` of each rank, one after the other, and how many values each has.
///
/// With the weights `w_i = n_i / n` and the deviations `d_i = mean_i - mean_r` from a rank `r` that has values,
/// `mean = mean_r + Σ w_i d_i` and `variance = Σ (squares_i / n + w_i (mean_i - mean)²)`. Deviations from a mean among
/// the others are small where the means are large, so that nothing cancels in single precision.
///
/// Source: T. Chan, G. Golub, R. LeVeque, "Algorithms for Computing the Sample Variance", 1983, for many sets at once.
fn merge<B: Backend>(gathered: FloatTensor<B>, counts: &[u64]) -> Joined<B> {
    let (ranks, dtype, device) = (counts.len(), gathered.dtype(), gathered.device());
    let channels = gathered.shape()[0] / (2 * ranks);
    let count: u64 = counts.iter().sum();
    let weighted = weigh::<B>(counts, dtype, &device);

    let rows = B::float_reshape(gathered, Shape::new([ranks, 2, channels]));
    let part = |index: usize| {
        let part = B::float_slice(rows.clone(), &[Slice::from(0..ranks), Slice::from(index..index + 1)]);
        B::float_reshape(part, Shape::new([ranks, channels]))
    };
    let (means, squares) = (part(0), part(1));
    let reference = counts.iter().position(|&own| own > 0).unwrap_or(0);
    let reference = B::float_slice(means.clone(), &[Slice::from(reference..reference + 1)]);

    let deviations = B::float_sub(means, reference.clone());
    let shift = sum_rows::<B>(weighted(deviations.clone()));
    let mean = B::float_add(reference, shift.clone());
    let between = B::float_sub(deviations, shift);
    let between = weighted(B::float_mul(between.clone(), between));
    let within = B::float_mul_scalar(squares, reciprocal(count).into());
    let variance = sum_rows::<B>(B::float_add(within, between));
    let flat = |tensor| B::float_reshape(tensor, Shape::new([channels]));
    Joined { mean: flat(mean), variance: flat(variance), count }
}

/// What multiplies the row of each rank by its share of all values. Equal shares, as nearly every step has them, are one
/// number, so that nothing goes to the device for them.
fn weigh<B: Backend>(
    counts: &[u64],
    dtype: BurnDType,
    device: &Device<B>,
) -> impl Fn(FloatTensor<B>) -> FloatTensor<B> {
    let count: u64 = counts.iter().sum();
    let shares: Vec<f64> = counts.iter().map(|&own| own as f64 * reciprocal(count)).collect();
    let equal = shares.iter().all(|&share| share == shares[0]).then(|| shares[0]);
    let differing = equal.is_none().then(|| {
        let shares = TensorData::new(shares, [counts.len(), 1]).convert_dtype(dtype);
        B::float_from_data(shares, device)
    });
    move |rows| match (&differing, equal) {
        (Some(shares), _) => B::float_mul(rows, shares.clone()),
        (None, equal) => B::float_mul_scalar(rows, equal.unwrap_or(1.0).into()),
    }
}

/// The sum of the rows of `[rows, channels]`, `[1, channels]`: the second half is added to the first until one row is left.
/// A row that has no partner goes on to the next round.
fn sum_rows<B: Backend>(mut rows: FloatTensor<B>) -> FloatTensor<B> {
    loop {
        let len = rows.shape()[0];
        if len == 1 {
            return rows;
        }
        let half = len / 2;
        let part = |range: Range<usize>| B::float_slice(rows.clone(), &[Slice::from(range)]);
        let sums = B::float_add(part(0..half), part(half..2 * half));
        rows = if len == 2 * half { sums } else { B::float_cat(vec![sums, part(2 * half..len)], 0) };
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::backend::ops::FloatTensorOps;
    use serde::Deserialize;

    use super::super::statistics::Statistics;
    use super::*;
    use crate::backends::host;
    use crate::{GroupOptions, ProcessGroup};

    /// Of one channel, straight from the definition.
    fn of(values: &[f64]) -> Statistics {
        let count = values.len() as u64;
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
        Statistics { count, mean: vec![mean], squares: vec![squares] }
    }

    /// Mean, variance and count of `parts`, merged as tensors of `dtype`.
    fn merged(parts: &[Vec<f64>], dtype: BurnDType) -> (f64, f64, u64) {
        let own: Vec<Statistics> = parts.iter().map(|part| of(part)).collect();
        let wire: Vec<f64> = own.iter().flat_map(|own| [own.mean[0], own.squares[0]]).collect();
        let counts: Vec<u64> = own.iter().map(|own| own.count).collect();
        let data = TensorData::new(wire.clone(), [wire.len()]).convert_dtype(dtype);
        let joined = merge::<Flex>(Flex::float_from_data(data, &Default::default()), &counts);
        let value = |tensor| host::read::<Flex>(tensor).unwrap().iter::<f64>().next().unwrap();
        (value(joined.mean), value(joined.variance), joined.count)
    }

    fn values(count: usize, offset: f64) -> Vec<f64> {
        (0..count).map(|index| offset + (index as f64 * 0.73).sin()).collect()
    }

    fn assert_is_joined(parts: &[Vec<f64>], dtype: BurnDType, tolerance: f64) {
        let (mean, variance, count) = merged(parts, dtype);
        let expected = of(&parts.concat());
        let expected_variance = expected.squares[0] / expected.count.max(1) as f64;
        assert_eq!(count, expected.count);
        let near =
            |found: f64, expected: f64| (found - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(near(mean, expected.mean[0]), "{mean}, expected {}", expected.mean[0]);
        assert!(near(variance, expected_variance), "{variance}, expected {expected_variance}");
    }

    #[test]
    fn parts_of_any_size_merge_to_the_statistics_of_all_values() {
        let parts = [values(7, 0.0), values(1, 3.0), values(19, -2.0)];
        assert_is_joined(&parts, BurnDType::F64, 1e-14);
        assert_is_joined(&parts, BurnDType::F32, 1e-6);
    }

    #[test]
    fn parts_of_one_size_merge_to_the_statistics_of_all_values() {
        for ranks in 1..6 {
            let parts: Vec<_> = (0..ranks).map(|rank| values(7, rank as f64 * 1.5)).collect();
            assert_is_joined(&parts, BurnDType::F64, 1e-14);
            assert_is_joined(&parts, BurnDType::F32, 1e-6);
        }
    }

    #[test]
    fn ranks_are_summed_in_halves_whatever_a_reduction_would_do() {
        let sum = |values: &[f32]| {
            let data = TensorData::new(values.to_vec(), [values.len(), 1]);
            let sum = sum_rows::<Flex>(Flex::float_from_data(data, &Default::default()));
            host::read::<Flex>(sum).unwrap().iter::<f32>().collect::<Vec<_>>()
        };
        assert_eq!(sum(&[3.0]), [3.0]);
        // From left to right the first 1 is lost beside 1e8, and the sum is 2.
        assert_eq!(sum(&[1e8, 1.0, -1e8, 1.0, 1.0]), [3.0]);
        // In halves the 1s are lost beside 1e8; from left to right the sum is 2.
        assert_eq!(sum(&[1e8, -1e8, 1.0, 1.0]), [0.0]);
    }

    #[test]
    fn a_rank_without_values_weighs_nothing_wherever_it_stands() {
        for empty in 0..3 {
            let mut parts = vec![values(5, 512.0), values(9, 512.5), values(4, 511.0)];
            parts[empty] = Vec::new();
            assert_is_joined(&parts, BurnDType::F64, 1e-12);
            // Half a unit in the last place of each mean, which is all that single precision holds of it.
            assert_is_joined(&parts, BurnDType::F32, 3e-5);
        }
        let (mean, variance, count) = merged(&[vec![], vec![]], BurnDType::F32);
        assert_eq!((mean, variance, count), (0.0, 0.0, 0));
    }

    #[test]
    fn a_large_mean_leaves_the_variance_as_exact_as_single_precision_holds_the_means() {
        // The naive `E[x²] - E[x]²` is off by 0.03 here.
        let parts = [values(33, 512.0), values(17, 512.25), values(64, 511.75), values(2, 512.0)];
        assert_is_joined(&parts, BurnDType::F32, 3e-5);
    }

    /// PyTorch's running statistics after the joined batch of several ranks.
    #[derive(Deserialize)]
    struct Reference {
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        dtype: String,
        offset: f64,
        shapes: Vec<Vec<usize>>,
        running_mean: Vec<f64>,
        running_var: Vec<f64>,
    }

    impl Case {
        /// The formula of the reference for the batch of `rank`.
        fn batch(&self, rank: usize) -> FloatTensor<Flex> {
            let sizes: Vec<usize> = self.shapes.iter().map(|shape| shape.iter().product()).collect();
            let start: usize = sizes[..rank].iter().sum();
            let value = |index: u64| (((index * 2_654_435_761 + 40_503) % (1 << 32)) >> 23) as f64;
            let values: Vec<f64> = (start as u64 + 1..=(start + sizes[rank]) as u64)
                .map(|index| value(index) / 256.0 - 1.0 + self.offset)
                .collect();
            let dtype = if self.dtype == "f64" { BurnDType::F64 } else { BurnDType::F32 };
            let data = TensorData::new(values, self.shapes[rank].clone()).convert_dtype(dtype);
            Flex::float_from_data(data, &Default::default())
        }

        fn check(&self, joined: Joined<Flex>) {
            let values = |tensor| host::read::<Flex>(tensor).unwrap().iter::<f64>().collect::<Vec<_>>();
            let (mean, variance) = (values(joined.mean), values(joined.variance));
            let unbiased = joined.count as f64 / (joined.count - 1) as f64;
            let (tight, wide) = if self.dtype == "f64" { (1e-12, 1e-11) } else { (2e-6, 2e-5) };
            for channel in 0..mean.len() {
                let (mean, running_mean) = (0.1 * mean[channel], self.running_mean[channel]);
                let limit = tight * running_mean.abs().max(1.0);
                assert!((mean - running_mean).abs() <= limit, "{}: {mean}, {running_mean}", self.name);
                let variance = 0.9 + 0.1 * variance[channel] * unbiased;
                let running_var = self.running_var[channel];
                let limit = if self.offset == 0.0 { tight } else { wide };
                assert!((variance - running_var).abs() <= limit, "{}: {variance}, {running_var}", self.name);
            }
        }
    }

    #[test]
    fn ranks_that_gather_tensors_find_what_pytorch_finds_on_the_joined_batch() {
        let reference = include_str!("../../tests/tensors/reference/batch_norm.json");
        let reference: Reference = serde_json::from_str(reference).unwrap();
        let full = |case: &&Case| case.dtype == "f32" || case.dtype == "f64";
        let mut offsets = 0;
        for case in reference.cases.iter().filter(full) {
            offsets += usize::from(case.offset != 0.0);
            let groups = ProcessGroup::local(case.shapes.len(), GroupOptions::default()).unwrap();
            std::thread::scope(|scope| {
                for group in groups {
                    scope.spawn(move || {
                        let x = case.batch(group.rank());
                        let count = (x.shape().num_elements() / x.shape()[1]) as u64;
                        let (mean, squares) = Flex::batch_norm_statistics(x);
                        case.check(gather::<Flex>(mean, squares, count, &Call::new(&group)).unwrap());
                    });
                }
            });
        }
        assert_eq!(offsets, 2);
    }
}
