//! Batch norm over ranks against PyTorch's on the joined batch, and what it does at the edges.

mod connect;
mod layer;
mod reports;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_nccl::{SyncBatchNorm, SyncBatchNormConfig};
use serde::Deserialize;

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
    serde_json::from_str(include_str!("../reference/batch_norm.json")).unwrap()
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
