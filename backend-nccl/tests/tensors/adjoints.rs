//! Values and gradients of the differentiable collectives, against formulas in the rank.

use burn::tensor::{Device, Tensor};
use burn_nccl::functions::{all_gather, all_reduce, all_to_all, broadcast, reduce_scatter};
use burn_nccl::{Error, ProcessGroup, ReduceOp};

use crate::{assert_close, devices, on_ranks, values};

const WORLD_SIZE: usize = 3;

/// Rank r holds [r + 1, 2 (r + 1), -3 r].
fn input(rank: usize, device: &Device) -> Tensor<1> {
    let r = rank as f32;
    Tensor::<1>::from_floats([r + 1.0, 2.0 * (r + 1.0), -3.0 * r], device).require_grad()
}

/// Rank r weighs its outputs by (r + 1) (i + 1), so that every rank's upstream gradient differs.
fn weights(rank: usize, len: usize, device: &Device) -> Tensor<1> {
    let weights: Vec<f32> = (0..len).map(|i| ((rank + 1) * (i + 1)) as f32).collect();
    Tensor::<1>::from_floats(weights.as_slice(), device)
}

/// Output and gradient of `function` on every rank, on every backend.
fn check(
    function: impl Fn(Tensor<1>, &ProcessGroup) -> Result<Tensor<1>, Error> + Sync,
    expected: impl Fn(usize) -> (Vec<f32>, Vec<f32>),
) {
    for device in devices() {
        let found = on_ranks(WORLD_SIZE, |group| {
            let device = device.clone().autodiff();
            let input = input(group.rank(), &device);
            let output = function(input.clone(), &group).unwrap();
            let weights = weights(group.rank(), output.dims()[0], &device);
            let gradients = (output.clone() * weights).sum().backward();
            (values(output.inner()), values(input.grad(&gradients).unwrap()))
        });
        for (rank, (output, gradient)) in found.iter().enumerate() {
            let (expected_output, expected_gradient) = expected(rank);
            assert_close(output, &expected_output, 1e-6);
            assert_close(gradient, &expected_gradient, 1e-6);
        }
    }
}

#[test]
fn the_gradient_of_a_sum_is_the_sum_of_all_ranks_gradients() {
    // Σ (r + 1) = 6 over three ranks; Σ -3 r = -9; Σ weights = 6 (i + 1).
    check(|x, group| all_reduce(x, ReduceOp::Sum, group), |_| (vec![6.0, 12.0, -9.0], vec![6.0, 12.0, 18.0]));
}

#[test]
fn the_gradient_of_a_mean_is_the_mean_of_all_ranks_gradients() {
    check(|x, group| all_reduce(x, ReduceOp::Mean, group), |_| (vec![2.0, 4.0, -3.0], vec![2.0, 4.0, 6.0]));
}

#[test]
fn the_gradient_of_a_maximum_goes_to_the_rank_that_holds_it() {
    check(
        |x, group| all_reduce(x, ReduceOp::Max, group),
        |rank| {
            let gradient = match rank {
                0 => vec![0.0, 0.0, 18.0],
                2 => vec![6.0, 12.0, 0.0],
                _ => vec![0.0; 3],
            };
            (vec![3.0, 6.0, 0.0], gradient)
        },
    );
}

#[test]
fn ranks_that_tie_for_a_minimum_share_its_gradient() {
    check(
        |x, group| all_reduce(x * 0.0 + 5.0, ReduceOp::Min, group),
        // d(0 x + 5)/dx = 0: the tie is seen in the output alone.
        |_| (vec![5.0; 3], vec![0.0; 3]),
    );
    check(
        |x, group| {
            // The same value on every rank, whose derivative with respect to x is one.
            let shift = x.clone().detach();
            all_reduce(x - shift + 5.0, ReduceOp::Min, group)
        },
        |_| (vec![5.0; 3], vec![2.0, 4.0, 6.0]),
    );
}

#[test]
fn the_gradient_of_a_product_is_exact_where_a_factor_is_zero() {
    // Products 1·2·3, 2·4·6, 0·-3·-6. Derivative: the others' product times 6 (i + 1).
    check(
        |x, group| all_reduce(x, ReduceOp::Product, group),
        |rank| {
            let gradient = match rank {
                0 => vec![6.0 * 6.0, 24.0 * 12.0, 18.0 * 18.0],
                1 => vec![3.0 * 6.0, 12.0 * 12.0, 0.0],
                _ => vec![2.0 * 6.0, 8.0 * 12.0, 0.0],
            };
            (vec![6.0, 48.0, 0.0], gradient)
        },
    );
}

#[test]
fn the_gradient_of_a_broadcast_is_summed_at_the_root() {
    check(
        |x, group| broadcast(x, 1, group),
        |rank| {
            let gradient = if rank == 1 { vec![6.0, 12.0, 18.0] } else { vec![0.0; 3] };
            (vec![2.0, 4.0, -3.0], gradient)
        },
    );
}

#[test]
fn the_gradient_of_a_gather_is_the_sum_over_ranks_of_the_own_part() {
    check(all_gather, |rank| {
        let output = vec![1.0, 2.0, 0.0, 2.0, 4.0, -3.0, 3.0, 6.0, -6.0];
        let gradient = (0..3).map(|i| (6 * (3 * rank + i + 1)) as f32).collect();
        (output, gradient)
    });
}

#[test]
fn the_gradient_of_a_scattered_reduction_is_the_gathered_gradient() {
    // Each rank keeps one element of the sum or mean; its weight is rank + 1.
    let sums = [6.0, 12.0, -9.0];
    check(|x, group| reduce_scatter(x, ReduceOp::Sum, group), |rank| (vec![sums[rank]], vec![1.0, 2.0, 3.0]));
    check(
        |x, group| reduce_scatter(x, ReduceOp::Mean, group),
        |rank| (vec![sums[rank] / 3.0], vec![1.0 / 3.0, 2.0 / 3.0, 1.0]),
    );
}

#[test]
fn what_has_no_derivative_or_no_even_shares_is_refused_before_anything_is_sent() {
    let group = &ProcessGroup::local(2, Default::default()).unwrap()[0];
    let device = Device::flex().autodiff();
    let tracked = Tensor::<1>::zeros([4], &device).require_grad();
    let error = reduce_scatter(tracked, ReduceOp::Max, group).unwrap_err();
    assert!(matches!(error, Error::NotDifferentiable { op: "reduce_scatter", reduce: ReduceOp::Max }));
    let odd = Tensor::<1>::zeros([3], &device);
    let error = reduce_scatter(odd, ReduceOp::Sum, group).unwrap_err();
    assert!(matches!(error, Error::UnevenShards { op: "reduce_scatter", rows: 3, world_size: 2 }));
}

#[test]
fn the_gradient_of_an_all_to_all_goes_back_the_way_the_values_came() {
    // Element i of rank r goes to rank i, where it is element r and weighs (i + 1) (r + 1).
    check(all_to_all, |rank| {
        let r = rank as f32;
        let held = |from: f32| [from + 1.0, 2.0 * (from + 1.0), -3.0 * from][rank];
        (vec![held(0.0), held(1.0), held(2.0)], vec![r + 1.0, 2.0 * (r + 1.0), 3.0 * (r + 1.0)])
    });
}
