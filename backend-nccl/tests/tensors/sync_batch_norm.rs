//! Batch norm over ranks against PyTorch's on the joined batch, and what it does at the edges.

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_nccl::ddp::{DdpConfig, DistributedDataParallel, UnevenInputs, UnusedParameters};
use burn_nccl::{Error, ProcessGroup, RunningVariance, SyncBatchNorm, SyncBatchNormConfig, sync_batch_norm};
use serde::Deserialize;

use crate::{assert_close, devices, on_ranks, values};

const CHANNELS: usize = 3;

/// `reference/batch_norm.json`, written by `reference/make.py`.
#[derive(Deserialize)]
struct Reference {
    gamma: Vec<f64>,
    beta: Vec<f64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    dtype: String,
    offset: f64,
    shapes: Vec<Vec<usize>>,
    output: Vec<f64>,
    input_gradient: Vec<f64>,
    gamma_gradient: Vec<f64>,
    beta_gradient: Vec<f64>,
    running_mean: Vec<f64>,
    running_var: Vec<f64>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("reference/batch_norm.json")).unwrap()
}

impl Case {
    fn dtype(&self) -> DType {
        match self.dtype.as_str() {
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            "f64" => DType::F64,
            _ => DType::F32,
        }
    }

    /// What rounding of the element type leaves; the reference is in f64.
    fn tolerance(&self) -> f64 {
        match self.dtype() {
            DType::F16 => 2e-3,
            DType::BF16 => 1.6e-2,
            DType::F64 => 1e-12,
            _ if self.offset != 0.0 => 2e-4,
            _ => 2e-6,
        }
    }

    /// The formula of make.py for the batch of `rank`.
    fn batch<const D: usize>(&self, seed: u64, offset: f64, rank: usize, device: &Device) -> Tensor<D> {
        let sizes: Vec<usize> = self.shapes.iter().map(|shape| shape.iter().product()).collect();
        let start: usize = sizes[..rank].iter().sum();
        let values: Vec<f64> = (start as u64 + 1..=(start + sizes[rank]) as u64)
            .map(|index| {
                (((index * 2_654_435_761 + seed * 40_503) % (1 << 32)) >> 23) as f64 / 256.0 - 1.0 + offset
            })
            .collect();
        let data = TensorData::new(values, self.shapes[rank].clone()).convert_dtype(self.dtype());
        Tensor::from_data(data, (device, self.dtype()))
    }
}

/// A layer of three channels with the reference's gamma and beta.
fn layer(config: &SyncBatchNormConfig, device: &Device) -> SyncBatchNorm {
    let reference = reference();
    let param = |values: &[f64]| {
        let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(DType::F32);
        Param::initialized(ParamId::new(), Tensor::from_data(data, device).require_grad())
    };
    let mut layer = config.init(device);
    layer.norm.gamma = param(&reference.gamma);
    layer.norm.beta = param(&reference.beta);
    layer
}

fn default_layer(device: &Device) -> SyncBatchNorm {
    layer(&SyncBatchNormConfig::new(CHANNELS), device)
}

fn wide<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// What one rank sees of one step.
#[derive(Debug, PartialEq)]
struct Step {
    output: Vec<f64>,
    input_gradient: Vec<f64>,
    gamma_gradient: Vec<f64>,
    beta_gradient: Vec<f64>,
    running_mean: Vec<f64>,
    running_var: Vec<f64>,
}

/// Forward and backward with `gradient` as the gradient of the output.
fn step<const D: usize>(layer: &SyncBatchNorm, input: Tensor<D>, gradient: Tensor<D>) -> Step {
    let input = input.require_grad();
    let output = layer.try_forward(input.clone()).unwrap();
    assert_eq!((output.dims(), output.dtype()), (input.dims(), input.dtype()));
    let gradients = (output.clone() * gradient).sum().backward();
    let running = layer.valid();
    let input_gradient = input.grad(&gradients).expect("the input has a gradient");
    assert_eq!((input_gradient.dims(), input_gradient.dtype()), (input.dims(), input.dtype()));
    Step {
        output: wide(output),
        input_gradient: wide(input_gradient),
        gamma_gradient: wide(layer.norm.gamma.grad(&gradients).expect("gamma has a gradient")),
        beta_gradient: wide(layer.norm.beta.grad(&gradients).expect("beta has a gradient")),
        running_mean: wide(running.norm.running_mean.value()),
        running_var: wide(running.norm.running_var.value()),
    }
}

fn case_step(case: &Case, layer: &SyncBatchNorm, rank: usize, device: &Device) -> Step {
    fn of<const D: usize>(case: &Case, layer: &SyncBatchNorm, rank: usize, device: &Device) -> Step {
        step::<D>(layer, case.batch(1, case.offset, rank, device), case.batch(2, 0.0, rank, device))
    }
    match case.shapes[rank].len() {
        2 => of::<2>(case, layer, rank, device),
        3 => of::<3>(case, layer, rank, device),
        4 => of::<4>(case, layer, rank, device),
        _ => of::<5>(case, layer, rank, device),
    }
}

fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let limit = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= limit, "{what}, element {index}: {found}, expected {expected}");
    }
}

fn sums<'a>(parts: impl Iterator<Item = &'a Vec<f64>>) -> Vec<f64> {
    parts.fold(vec![0.0; CHANNELS], |sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect())
}

/// Asserts that the ranks together found what PyTorch found on the joined batch.
fn assert_is_joined(case: &Case, steps: &[Step]) {
    let tolerance = case.tolerance();
    let what = |part: &str| format!("{}, {part}", case.name);
    let joined = |part: fn(&Step) -> &Vec<f64>| steps.iter().flat_map(part).copied().collect::<Vec<_>>();
    assert_near(&what("output"), &joined(|step| &step.output), &case.output, tolerance);
    assert_near(&what("dx"), &joined(|step| &step.input_gradient), &case.input_gradient, tolerance);
    // Parameters, and so their gradients, are f32 whatever the input is.
    let tolerance = tolerance.max(2e-6);
    let gamma = sums(steps.iter().map(|step| &step.gamma_gradient));
    assert_near(&what("sum of dgamma"), &gamma, &case.gamma_gradient, tolerance);
    let beta = sums(steps.iter().map(|step| &step.beta_gradient));
    assert_near(&what("sum of dbeta"), &beta, &case.beta_gradient, tolerance);
    // Statistics do not see the rounding of a half output; the running ones are f32, that is 1e-7 of what they hold.
    for step in steps {
        assert_near(&what("running mean"), &step.running_mean, &case.running_mean, 2e-6);
        assert_near(
            &what("running variance"),
            &step.running_var,
            &case.running_var,
            tolerance.clamp(2e-6, 2e-4),
        );
        assert_eq!(step.running_mean, steps[0].running_mean, "{}", what("ranks differ"));
        assert_eq!(step.running_var, steps[0].running_var, "{}", what("ranks differ"));
    }
}

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

/// A layer that may synchronise between two that train.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: Option<SyncBatchNorm>,
    last: Vec<Linear>,
}

impl Net {
    fn new(synchronized: bool, device: &Device) -> Self {
        let config = SyncBatchNormConfig::new(8).with_synchronized(synchronized);
        Self {
            first: LinearConfig::new(4, 8).init(device),
            norm: Some(config.init(device)),
            last: vec![LinearConfig::new(8, 2).init(device)],
        }
    }

    fn group(&self) -> Option<&ProcessGroup> {
        self.norm.as_ref().and_then(SyncBatchNorm::group)
    }
}

#[test]
fn connecting_reaches_every_layer_that_asks_for_it_and_no_other() {
    let device = Device::flex().autodiff();
    on_ranks(2, |group| {
        let net = sync_batch_norm::connect(Net::new(true, &device), &group);
        assert_eq!(net.group().map(ProcessGroup::world_size), Some(2));
        assert!(Net::new(true, &device).group().is_none(), "the scope is closed again");
        assert!(sync_batch_norm::connect(Net::new(false, &device), &group).group().is_none());
        // A layer keeps the group it has.
        let net = sync_batch_norm::connect(net, &ProcessGroup::single());
        assert_eq!(net.group().map(ProcessGroup::world_size), Some(2));
        assert!(net.norm.unwrap().without_group().group().is_none());
    });
}

#[test]
fn data_parallel_training_connects_synchronized_layers_and_only_those() {
    let device = Device::flex().autodiff();
    for (synchronized, expected) in [(true, Some(2)), (false, None)] {
        for found in on_ranks(2, |group| {
            let net = Net::new(synchronized, &device);
            let (ddp, net) = DistributedDataParallel::new(net, &group, &DdpConfig::new()).unwrap();
            let hooked = ddp.hook(&net).unwrap();
            [&net, &hooked, &net.valid()].map(|net| net.group().map(ProcessGroup::world_size))
        }) {
            assert_eq!(found, [expected; 3]);
        }
    }
}

#[test]
fn options_under_which_a_rank_could_miss_a_collective_are_refused_on_all_ranks() {
    let device = Device::flex().autodiff();
    let allow = DdpConfig::new().with_unused_parameters(UnusedParameters::Allow);
    let cases = [
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::JoinActive), Some("UnevenInputs::JoinActive")),
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::JoinWorld), Some("UnevenInputs::JoinWorld")),
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::Strict), None),
        (allow.clone(), Some("UnusedParameters::Allow with overlap")),
        (allow.with_overlap(false), None),
    ];
    for (config, expected) in cases {
        for synchronized in [true, false] {
            let expected = expected.filter(|_| synchronized);
            for error in on_ranks(2, |group| {
                DistributedDataParallel::new(Net::new(synchronized, &device), &group, &config).err()
            }) {
                match (error, expected) {
                    (None, None) => {}
                    (Some(Error::SyncBatchNormOption { option, .. }), Some(expected)) => {
                        assert_eq!(option, expected)
                    }
                    (error, expected) => panic!("{error:?}, expected {expected:?}"),
                }
            }
        }
    }
}

#[test]
fn ranks_that_disagree_on_what_synchronises_are_told_so() {
    let device = Device::flex().autodiff();
    for error in on_ranks(2, |group| {
        let net = Net::new(group.rank() == 0, &device);
        DistributedDataParallel::new(net, &group, &DdpConfig::new()).err().map(|error| error.to_string())
    }) {
        let text = error.expect("an error");
        assert!(text.contains("rank 0 has 1 synchronized batch norm layers, rank 1 has 0"), "{text}");
    }
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
