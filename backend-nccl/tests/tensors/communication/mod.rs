//! Communication hooks under `DistributedDataParallel`.

mod own;
mod power_sgd;
mod scaling;

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl::ddp::{Communication, CommunicationHook, DdpConfig, DistributedDataParallel};
use burn_nccl::{Error, ProcessGroup};
use half::{bf16, f16};

use crate::{on_ranks, values};

/// A loss whose gradients are given: `Σ weight * matrix + Σ bias * vector`.
#[derive(Module, Debug)]
struct Given {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

const COLUMNS: usize = 3;

impl Given {
    fn new(rows: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::ones([rows, COLUMNS], device)),
            bias: Param::from_tensor(Tensor::ones([COLUMNS], device)),
        }
    }

    fn loss(&self, gradients: &[f32]) -> Tensor<1> {
        let device = self.weight.device();
        let matrix = self.weight.dims();
        let (weight, bias) = gradients.split_at(matrix[0] * COLUMNS);
        let weight = Tensor::<2>::from_data(TensorData::new(weight.to_vec(), matrix), &device);
        let bias = Tensor::<1>::from_data(TensorData::new(bias.to_vec(), [COLUMNS]), &device);
        (self.weight.val() * weight).sum() + (self.bias.val() * bias).sum()
    }

    fn flat(&self, gradients: &GradientsParams) -> Vec<f32> {
        let weight = gradients.get::<2>(self.weight.id).map(values).unwrap_or_default();
        let bias = gradients.get::<1>(self.bias.id).map(values).unwrap_or_default();
        [weight, bias].concat()
    }
}

/// Each rank's average of the given gradients.
fn averages(ranks: &[Vec<f32>], config: &DdpConfig) -> Vec<Vec<f32>> {
    on_ranks(ranks.len(), |group| {
        let own = &ranks[group.rank()];
        let model = Given::new(own.len() / COLUMNS - 1, &Device::flex().autodiff());
        let (mut ddp, model) = DistributedDataParallel::new(model, &group, config).unwrap();
        let loss = ddp.hook(&model).unwrap().loss(own);
        model.flat(&ddp.backward(&loss, &model).unwrap())
    })
}

/// One step with a hook of the test's own.
fn step_with(
    group: &ProcessGroup,
    gradients: &[f32],
    hook: impl CommunicationHook + 'static,
) -> Result<Vec<f32>, Error> {
    let model = Given::new(gradients.len() / COLUMNS - 1, &Device::flex().autodiff());
    let (config, hook) = (one_parameter_buckets(), Box::new(hook));
    let (mut ddp, model) = DistributedDataParallel::with_communication_hook(model, group, &config, hook)?;
    let loss = ddp.hook(&model)?.loss(gradients);
    Ok(model.flat(&ddp.backward(&loss, &model)?))
}

fn one_parameter_buckets() -> DdpConfig {
    DdpConfig::new().with_first_bucket_bytes(1).with_bucket_bytes(1)
}

#[test]
fn half_precision_rounds_each_ranks_gradient_and_the_mean_of_their_sum_once() {
    // Half way between two f16 numbers, between two bf16 numbers, beyond f16, below it, and sums that f16 does not hold.
    let ranks = [
        vec![1.0 + 1.0 / 2048.0, 0.1, 70000.0, 1e-9, 60000.0, 3.0, 1.0 + 1.0 / 256.0, -0.3, 1e-5],
        vec![1.0, 0.2, 1.0, 1e-9, 60000.0, -2.999, 2.0, 0.7, -3e-5],
    ];
    let found = averages(&ranks, &DdpConfig::new().with_communication(Communication::F16));
    let rounded = |value: f32| f16::from_f32(value).to_f32();
    let expected: Vec<f32> =
        ranks[0].iter().zip(&ranks[1]).map(|(a, b)| rounded((rounded(*a) + rounded(*b)) / 2.0)).collect();
    assert_eq!(found, [expected.clone(), expected.clone()]);
    assert_eq!((expected[0], expected[2], expected[4]), (1.0, f32::INFINITY, 60000.0));

    let found = averages(&ranks, &DdpConfig::new().with_communication(Communication::BF16));
    let rounded = |value: f32| bf16::from_f32(value).to_f32();
    let expected: Vec<f32> =
        ranks[0].iter().zip(&ranks[1]).map(|(a, b)| rounded((rounded(*a) + rounded(*b)) / 2.0)).collect();
    assert_eq!(found, [expected.clone(), expected]);
}

#[test]
fn without_a_hook_the_mean_is_exact() {
    let ranks = [vec![0.5, -8.0, 3e30, 1.0, 2.0, 3.0], vec![0.25, 4.0, 1e30, 7.0, 8.0, 9.0]];
    let expected: Vec<f32> = ranks[0].iter().zip(&ranks[1]).map(|(a, b)| (a + b) / 2.0).collect();
    assert_eq!(averages(&ranks, &DdpConfig::new()), [expected.clone(), expected]);
}

#[test]
fn ranks_with_different_hooks_are_told_both_on_every_rank() {
    let device = Device::flex().autodiff();
    let errors = on_ranks(2, |group| {
        let communication = [Communication::F16, Communication::BF16][group.rank()].clone();
        let config = DdpConfig::new().with_communication(communication);
        DistributedDataParallel::new(Given::new(2, &device), &group, &config).err()
    });
    for error in errors {
        let text = error.expect("an error").to_string();
        assert!(text.contains("communication hook `f16`, rank 1 has `bf16`"), "{text}");
    }
}
