//! What surrounds the arithmetic: the tape, layouts, element types, records and errors.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_nccl::{Error, RunningVariance, SyncBatchNorm, SyncBatchNormConfig};

use super::{CHANNELS, assert_is_joined, assert_near, case_step, default_layer, reference, step, sums, wide};
use crate::{assert_close, devices, on_ranks, values};

#[test]
fn the_gradient_of_one_backward_pass_after_two_forward_passes_is_the_sum_of_both() {
    let device = Device::flex().autodiff();
    let rows = |rank: usize, seed: u64| {
        let reference = reference();
        let case = reference.cases.iter().find(|case| case.name == "2-D").unwrap();
        case.batch::<2>(seed, 0.0, rank, &device)
    };
    for (once, twice, separate) in on_ranks(2, |group| {
        let layer = default_layer(&device).with_group(&group);
        let rank = group.rank();
        let gamma = |loss: Tensor<1>| wide(layer.norm.gamma.grad(&loss.backward()).unwrap());
        let loss = |seed| (layer.forward(rows(rank, seed)) * rows(rank, 2)).sum();
        let once = gamma(loss(1));
        (once.clone(), gamma(loss(1) + loss(3)), sums([once, gamma(loss(3))].iter()))
    }) {
        assert_ne!(once, twice);
        assert_near("dgamma", &twice, &separate, 1e-6);
    }
}

#[test]
fn gradient_checkpointing_changes_no_bit_and_runs_no_collective_again() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.name == "4-D, batches of 1 and 7").unwrap();
    let run = |device: &Device| {
        on_ranks(2, |group| {
            let layer = default_layer(device).with_group(&group);
            let input = case.batch::<4>(1, 0.0, group.rank(), device).require_grad();
            // What lies around the layer is computed again in the backward pass.
            let output = layer.forward(input.clone().exp()).tanh().exp();
            let gradients = (output * case.batch(2, 0.0, group.rank(), device)).sum().backward();
            // A collective more on one rank or on both would meet this one.
            group.barrier().unwrap();
            (wide(input.grad(&gradients).unwrap()), wide(layer.norm.gamma.grad(&gradients).unwrap()))
        })
    };
    let plain = run(&Device::flex().autodiff());
    assert_eq!(plain, run(&Device::flex().autodiff().gradient_checkpointing()));
}

/// What needs no gradient must not take the collective of the backward pass away from the other ranks.
#[test]
fn ranks_agree_when_input_or_parameters_need_no_gradient() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.name == "2-D").unwrap();
    let device = Device::flex().autodiff();
    let run = |train_input: bool, train_parameters: bool| {
        on_ranks(2, |group| {
            let layer = default_layer(&device).with_group(&group).set_require_grad(train_parameters);
            let input = case.batch::<2>(1, 0.0, group.rank(), &device).set_require_grad(train_input);
            let loss = (layer.forward(input.clone()) * case.batch(2, 0.0, group.rank(), &device)).sum();
            let gradients = loss.backward();
            group.barrier().unwrap();
            let values = |gradient: Option<Vec<f64>>| gradient.unwrap_or_default();
            let gamma = layer.norm.gamma.grad(&gradients).map(wide);
            (values(input.grad(&gradients).map(wide)), values(gamma))
        })
    };
    let parts = |ranks: Vec<(Vec<f64>, Vec<f64>)>| {
        let (input, gamma): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        (input.concat(), gamma)
    };
    let (input, gamma) = parts(run(true, false));
    assert_near("dx", &input, &case.input_gradient, 2e-6);
    assert!(gamma.concat().is_empty());
    let (input, gamma) = parts(run(false, true));
    assert!(input.is_empty());
    assert_near("sum of dgamma", &sums(gamma.iter()), &case.gamma_gradient, 2e-6);
}

#[test]
fn an_input_with_the_channels_outermost_gives_the_same_as_a_contiguous_one() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.name == "4-D, batches of 1 and 7").unwrap();
    for device in devices() {
        let device = device.autodiff();
        let steps = on_ranks(2, |group| {
            let outermost = |seed| {
                let tensor = case.batch::<4>(seed, 0.0, group.rank(), &device);
                let dims = tensor.dims();
                // Laid out as [channels, batch, ..]: swapped, copied, swapped back as a view.
                let copied = tensor.swap_dims(0, 1).into_data();
                let view = Tensor::<4>::from_data(copied, &device).swap_dims(0, 1);
                assert_eq!(view.dims(), dims);
                view
            };
            step(&default_layer(&device).with_group(&group), outermost(1), outermost(2))
        });
        assert_is_joined(case, &steps);
    }
}

#[test]
fn half_parameters_get_half_gradients_and_keep_f32_statistics() {
    let reference = reference();
    let case = reference.cases.iter().find(|case| case.dtype == "f16").unwrap();
    let device = Device::flex().autodiff();
    let steps = on_ranks(2, |group| {
        let mut layer = default_layer(&device).with_group(&group);
        let half = |param: Param<Tensor<1>>| {
            let tensor = param.val().inner().cast(DType::F16);
            Param::initialized(param.id, Tensor::from_inner(tensor).require_grad())
        };
        layer.norm.gamma = half(layer.norm.gamma);
        layer.norm.beta = half(layer.norm.beta);
        let step = case_step(case, &layer, group.rank(), &device);
        assert_eq!(layer.norm.running_var.value_sync().dtype(), DType::F32);
        step
    });
    assert_is_joined(case, &steps);
}

#[test]
fn half_input_is_evaluated_with_f32_parameters_and_comes_out_half() {
    let device = Device::flex();
    let layer = SyncBatchNormConfig::new(1).init(&device);
    let input = Tensor::<2>::from_data([[0.5], [-2.0]], &device).cast(DType::BF16);
    let output = layer.forward(input);
    assert_eq!(output.dtype(), DType::BF16);
    assert_near("output", &wide(output), &[0.5, -2.0], 4e-3);
}

#[test]
fn evaluation_and_a_frozen_layer_talk_to_nobody() {
    let device = Device::flex().autodiff();
    for outcome in on_ranks(2, |group| {
        let layer = default_layer(&device).with_group(&group);
        if group.rank() == 0 {
            layer.valid().forward(Tensor::<2>::ones([2, CHANNELS], &device.clone().inner()));
            layer.freeze().forward(Tensor::<2>::ones([2, CHANNELS], &device));
        }
        group.barrier()
    }) {
        outcome.unwrap();
    }
}

#[test]
fn training_alone_is_burns_batch_norm_but_for_the_running_variance() {
    let device = Device::flex().autodiff();
    let input = || {
        Tensor::<4>::from_data(
            TensorData::new((0..96).map(|i| ((i * 37) % 23) as f32).collect(), [4, 3, 2, 4]),
            &device,
        )
    };
    let norm: BatchNorm = BatchNormConfig::new(CHANNELS).init(&device);
    let config = SyncBatchNormConfig::new(CHANNELS).with_running_variance(RunningVariance::Biased);
    let layer = config.init(&device);
    assert_close(&values(layer.forward(input()).inner()), &values(norm.forward(input()).inner()), 1e-6);
    let running = |norm: BatchNorm| values(norm.running_var.value_sync().inner());
    assert_close(&running(layer.norm), &running(norm), 1e-6);
}

#[test]
fn records_move_between_this_layer_and_burns() {
    let device = Device::flex().autodiff();
    let norm: BatchNorm = BatchNormConfig::new(CHANNELS).init(&device);
    let layer = default_layer(&device);
    let gamma = values(layer.norm.gamma.val().inner());
    let norm = norm.load_record(layer.clone().into_record());
    assert_eq!(values(norm.gamma.val().inner()), gamma);
    let fresh = SyncBatchNormConfig::new(CHANNELS).init(&device).load_record(norm.clone().into_record());
    assert_eq!(values(fresh.norm.gamma.val().inner()), gamma);
    assert!(SyncBatchNorm::from(norm).is_synchronized());
}

#[test]
fn a_layer_says_in_print_what_it_normalises_over() {
    let text = SyncBatchNormConfig::new(CHANNELS).init(&Device::flex()).to_string();
    let expected =
        "SyncBatchNorm {num_features: 3, momentum: 0.1, epsilon: 0.00001, synchronized: true, ranks: 1}";
    assert_eq!(text, expected);
}

#[test]
fn a_failed_group_is_an_error_of_try_forward_and_of_the_collective_after_forward() {
    let device = Device::flex().autodiff();
    for (first, second) in on_ranks(2, |group| {
        let layer = default_layer(&device).with_group(&group);
        if group.rank() == 1 {
            group.abort("its data ran out");
        }
        let input = || Tensor::<2>::ones([2, CHANNELS], &device);
        let first = layer.try_forward(input()).unwrap_err().to_string();
        let output = layer.forward(input());
        assert_eq!(output.dims(), [2, CHANNELS]);
        (first, group.barrier().unwrap_err().to_string())
    }) {
        assert!(
            first.contains("its data ran out") && second.contains("its data ran out"),
            "{first}; {second}"
        );
    }
}

#[test]
fn ranks_with_different_layers_fail_on_both() {
    let device = Device::flex().autodiff();
    for error in on_ranks(2, |group| {
        let channels = [3, 4][group.rank()];
        let layer = SyncBatchNormConfig::new(channels).init(&device).with_group(&group);
        layer.try_forward(Tensor::<2>::ones([2, channels], &device)).err()
    }) {
        assert!(matches!(error, Some(Error::Collective { .. })), "{error:?}");
    }
}
