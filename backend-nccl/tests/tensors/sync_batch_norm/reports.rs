//! The reference, and the cases that public reports of other projects tell of.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use burn_nccl::{Error, RunningVariance, SyncBatchNormConfig};

use super::{
    CHANNELS, assert_is_joined, assert_near, case_step, default_layer, layer, reference, step, wide,
};
use crate::{devices, on_ranks};

#[test]
fn one_to_four_ranks_equal_pytorch_on_the_joined_batch() {
    for case in reference().cases {
        for device in devices() {
            // The backend that upstream has given up has no half precision.
            if matches!(case.dtype(), DType::F16 | DType::BF16) && device != Device::flex() {
                continue;
            }
            let device = device.autodiff();
            let steps = on_ranks(case.shapes.len(), |group| {
                case_step(&case, &default_layer(&device).with_group(&group), group.rank(), &device)
            });
            assert_is_joined(&case, &steps);
        }
    }
}

#[test]
fn one_rank_alone_needs_no_group() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.shapes.len() == 1).unwrap();
    for device in devices() {
        let device = device.autodiff();
        assert_is_joined(case, &[case_step(case, &default_layer(&device), 0, &device)]);
    }
}

/// Public report B1: with the local count, ranks of different sizes would keep different running variances.
#[test]
fn b1_running_statistics_are_equal_on_ranks_with_batches_of_1_and_7_and_other_sizes() {
    for name in ["4-D, batches of 1 and 7", "4-D, other heights and widths"] {
        let reference = reference();
        let case = reference.cases.iter().find(|case| case.name == name).unwrap();
        let device = Device::flex().autodiff();
        let steps = on_ranks(case.shapes.len(), |group| {
            case_step(case, &default_layer(&device).with_group(&group), group.rank(), &device)
        });
        assert_is_joined(case, &steps);
    }
}

/// Public report B2: an empty batch crashed or hung.
#[test]
fn b2_an_empty_batch_takes_part_and_its_gradients_are_zero() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.name == "an empty batch first").unwrap();
    for device in devices() {
        let device = device.autodiff();
        let steps = on_ranks(2, |group| {
            case_step(case, &default_layer(&device).with_group(&group), group.rank(), &device)
        });
        assert_is_joined(case, &steps);
        assert_eq!(steps[0].gamma_gradient, [0.0; CHANNELS]);
        assert_eq!(steps[0].beta_gradient, [0.0; CHANNELS]);
        assert!(steps[0].output.is_empty() && steps[0].input_gradient.is_empty());
    }
}

/// Public report B2, second half.
#[test]
fn b2_empty_batches_on_all_ranks_leave_the_running_statistics_alone() {
    for device in devices() {
        let device = device.autodiff();
        let empty = || Tensor::<4>::zeros([0, CHANNELS, 2, 2], &device);
        let alone = step(&default_layer(&device), empty(), empty());
        for step in on_ranks(2, |group| step(&default_layer(&device).with_group(&group), empty(), empty()))
            .into_iter()
            .chain([alone])
        {
            assert_eq!(step.running_mean, [0.0; CHANNELS]);
            assert_eq!(step.running_var, [1.0; CHANNELS]);
            assert_eq!(step.gamma_gradient, [0.0; CHANNELS]);
            assert_eq!(step.beta_gradient, [0.0; CHANNELS]);
        }
    }
}

/// Public report B5: what counts is the number of values on all ranks. Two ranks with one each are a case of the
/// reference.
#[test]
fn b5_one_value_per_channel_is_refused_only_when_no_other_rank_has_any() {
    let device = Device::flex().autodiff();
    let input = |batch: usize| Tensor::<2>::ones([batch, CHANNELS], &device);
    let alone = default_layer(&device);
    assert!(matches!(alone.try_forward(input(1)), Err(Error::OneValuePerChannel)));
    assert_eq!(wide(alone.valid().norm.running_var.value()), [1.0; CHANNELS]);
    assert!(alone.valid().try_forward(input(1).inner()).is_ok(), "evaluation takes any number of values");
    let outcomes = on_ranks(2, |group| {
        let layer = default_layer(&device).with_group(&group);
        // Rank 1 has none: both ranks learn that there is one value in all.
        let refused = layer.try_forward(input(1 - group.rank()));
        (matches!(refused, Err(Error::OneValuePerChannel)), layer.try_forward(input(1)).is_ok())
    });
    assert_eq!(outcomes, [(true, true); 2], "the error is on all ranks and the group lives on");
}

#[test]
#[should_panic(expected = "one value per channel")]
fn b5_without_a_group_one_value_per_channel_panics_with_the_text_of_the_error() {
    let device = Device::flex().autodiff();
    default_layer(&device).forward(Tensor::<2>::ones([1, CHANNELS], &device));
}

/// Public report B6: the golden test above has PyTorch's unbiased variance; this one has the formula for both rules.
#[test]
fn b6_the_running_variance_is_unbiased_with_the_global_count_or_biased_by_option() {
    let device = Device::flex().autodiff();
    // Channel values 1, 2 | 3, 6 on two ranks: mean 3, squared deviations 14, so 14 / 3 and 14 / 4.
    let rows = |rank: usize| {
        let row = [[1.0, 2.0], [3.0, 6.0]][rank];
        Tensor::<2>::from_data([[row[0]; CHANNELS], [row[1]; CHANNELS]], &device)
    };
    for (rule, variance) in [(RunningVariance::Unbiased, 14.0 / 3.0), (RunningVariance::Biased, 14.0 / 4.0)] {
        let config = SyncBatchNormConfig::new(CHANNELS).with_running_variance(rule).with_momentum(0.5);
        for found in on_ranks(2, |group| {
            let layer = layer(&config, &device).with_group(&group);
            step(&layer, rows(group.rank()), rows(group.rank()))
        }) {
            assert_near("running mean", &found.running_mean, &[1.5; CHANNELS], 1e-6);
            assert_near("running variance", &found.running_var, &[0.5 + 0.5 * variance; CHANNELS], 1e-6);
        }
    }
}

/// Public report B7: evaluation must use the running statistics.
#[test]
fn b7_after_five_steps_evaluation_is_the_formula_with_the_running_statistics() {
    let device = Device::flex().autodiff();
    let (mut mean, mut variance) = (0.0, 1.0);
    let layer = SyncBatchNormConfig::new(1).init(&device);
    for step in 0..5 {
        let batch = [step as f64, step as f64 + 1.0, 4.0];
        layer.forward(Tensor::<2>::from_data([[batch[0]], [batch[1]], [batch[2]]], &device));
        let batch_mean = batch.iter().sum::<f64>() / 3.0;
        let batch_variance = batch.iter().map(|value| (value - batch_mean).powi(2)).sum::<f64>() / 2.0;
        mean = 0.9 * mean + 0.1 * batch_mean;
        variance = 0.9 * variance + 0.1 * batch_variance;
    }
    let evaluated = layer.valid().forward(Tensor::<2>::from_data([[2.0], [-1.0]], &device.clone().inner()));
    let expected: Vec<f64> = [2.0, -1.0].map(|x| (x - mean) / (variance + 1e-5_f64).sqrt()).to_vec();
    assert_near("evaluation", &wide(evaluated), &expected, 1e-6);
}

/// Public report B10: the running statistics never moved.
#[test]
fn b10_one_step_moves_the_running_mean_by_momentum_times_the_batch_mean() {
    let device = Device::flex().autodiff();
    let layer = SyncBatchNormConfig::new(2).with_momentum(0.25).init(&device);
    layer.forward(Tensor::<2>::from_data([[1.0, 10.0], [3.0, 30.0]], &device));
    assert_near("running mean", &wide(layer.norm.running_mean.value_sync()), &[0.5, 5.0], 1e-7);
}
