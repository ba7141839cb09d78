//! Accumulated micro-batches against one large batch.

use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_nccl::Error;
use burn_nccl::accumulation::{Accumulation, GradientAverage, Pass};
use burn_nccl::amp::GradScalerConfig;
use burn_nccl::ddp::DistributedDataParallel;

use super::config;
use crate::model::{Net, parameters, rows};
use crate::{assert_close, devices, on_ranks, values};

const MICRO_BATCHES: usize = 4;
/// Ten micro-batches: windows of 4, 4 and 2.
const BATCHES: usize = 10;
const ROWS: usize = 3;
const RATE: f64 = 0.1;

/// The micro-batches of each window.
fn windows() -> Vec<std::ops::Range<usize>> {
    vec![0..4, 4..8, 8..10]
}

/// One process that takes each window as one batch.
fn large_batches(device: &Device, ranks: usize) -> Vec<f32> {
    let (mut net, mut optimizer) = (Net::new(device), SgdConfig::new().init());
    for window in windows() {
        let loss = net.loss(rows(window.start * ROWS * ranks, window.end * ROWS * ranks, device));
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(RATE, net, gradients);
    }
    parameters(&net)
}

#[test]
fn a8_four_micro_batches_equal_one_large_batch_and_the_last_two_their_own() {
    for device in devices() {
        let device = device.autodiff();
        let (mut net, mut optimizer) = (Net::new(&device), SgdConfig::new().init());
        let (mut window, mut average) = (Accumulation::new(MICRO_BATCHES), GradientAverage::new());
        let mut steps = Vec::new();
        for batch in 0..BATCHES {
            let loss = net.loss(rows(batch * ROWS, (batch + 1) * ROWS, &device));
            average.add(&net, GradientsParams::from_grads(loss.backward(), &net));
            if let Pass::Last { passes } = window.next(batch + 1 == BATCHES) {
                assert_eq!(passes, average.passes());
                steps.push(passes);
                let gradients = average.take(&net).unwrap();
                net = optimizer.step(RATE, net, gradients);
            }
        }
        assert_eq!(steps, [4, 4, 2]);
        assert_close(&parameters(&net), &large_batches(&device, 1), 1e-6);
    }
}

#[test]
fn a8_micro_batches_of_two_ranks_with_scaled_losses_equal_one_large_batch() {
    let device = Device::flex().autodiff();
    let expected = large_batches(&device, 2);
    let found = on_ranks(2, |group| {
        let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device), &group, &config()).unwrap();
        let mut optimizer = SgdConfig::new().init();
        // It grows after each window, so that a window with two scales would show.
        let config = GradScalerConfig::new().with_growth_interval(1);
        let mut scaler = config.init().unwrap().with_group(&group);
        let mut window = Accumulation::new(MICRO_BATCHES);
        for batch in 0..BATCHES {
            let start = (batch * 2 + group.rank()) * ROWS;
            let loss = ddp.hook(&net).unwrap().loss(rows(start, start + ROWS, &device));
            let loss = scaler.scale(loss);
            match window.next(batch + 1 == BATCHES) {
                Pass::Keep => ddp.no_sync(&loss).unwrap(),
                Pass::Last { .. } => {
                    let gradients = ddp.backward(&loss, &net).unwrap();
                    net = scaler.step(&mut optimizer, RATE, net, gradients).unwrap();
                    scaler.update().unwrap();
                }
            }
        }
        assert_eq!(scaler.loss_scale().factor(), 8.0 * 65536.0);
        parameters(&net)
    });
    for found in found {
        assert_close(&found, &expected, 1e-6);
    }
}

#[test]
fn an_overflow_in_one_micro_batch_skips_its_whole_window() {
    let device = Device::flex().autodiff();
    let (mut net, mut optimizer) = (Net::new(&device), SgdConfig::new().init());
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut average = GradientAverage::new();
    let before = parameters(&net);
    for factor in [1.0, f32::INFINITY, 1.0] {
        let loss = scaler.scale(net.loss(rows(0, ROWS, &device)) * factor);
        average.add(&net, GradientsParams::from_grads(loss.backward(), &net));
    }
    let gradients = average.take(&net).unwrap();
    net = scaler.step(&mut optimizer, RATE, net, gradients).unwrap();
    scaler.update().unwrap();
    assert_eq!(parameters(&net), before);
    assert_eq!((scaler.skipped_steps(), scaler.loss_scale().factor()), (1, 32768.0));
}

#[test]
fn an_update_in_the_middle_of_a_window_is_refused_and_leaves_the_scale() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut average = GradientAverage::new();
    let loss = scaler.scale(net.loss(rows(0, ROWS, &device)));
    average.add(&net, GradientsParams::from_grads(loss.backward(), &net));
    assert!(matches!(scaler.update(), Err(Error::NothingUnscaled)));
    assert_eq!(scaler.loss_scale().factor(), 65536.0);
}

#[test]
fn a_parameter_without_a_gradient_in_one_micro_batch_had_zeros_there() {
    let device = Device::flex();
    let layer = LinearConfig::new(1, 1).with_bias(false).init(&device.clone().autodiff());
    let mut average = GradientAverage::new();
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, Tensor::<2>::from_floats([[6.0]], &device));
    average.add(&layer, gradients);
    average.add(&layer, GradientsParams::new());
    let gradients = average.take(&layer).unwrap();
    assert_eq!(values(gradients.get::<2>(layer.weight.id).unwrap()), [3.0]);
}

#[test]
fn half_precision_gradients_are_summed_in_f32() {
    let device = Device::flex();
    let layer = LinearConfig::new(1, 1).with_bias(false).init(&device.clone().autodiff());
    let mut average = GradientAverage::new();
    // In bf16, 256 + 1 is 256 again.
    for value in [256.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0] {
        let mut gradients = GradientsParams::new();
        gradients.register(layer.weight.id, Tensor::<2>::from_floats([[value]], &device).cast(DType::BF16));
        average.add(&layer, gradients);
    }
    let gradients = average.take(&layer).unwrap();
    let found = gradients.get::<2>(layer.weight.id).unwrap();
    assert_eq!(found.dtype(), DType::F32);
    assert_close(&values(found), &[264.0 / 9.0], 1e-6);
}

#[test]
fn an_empty_window_is_an_error_and_a_taken_one_is_empty() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut average = GradientAverage::new();
    assert!(matches!(average.take(&net), Err(Error::EmptyWindow)));
    let loss = net.loss(rows(0, ROWS, &device));
    average.add(&net, GradientsParams::from_grads(loss.backward(), &net));
    assert_eq!(average.take(&net).unwrap().len(), 6);
    assert!(matches!(average.take(&net), Err(Error::EmptyWindow)));
}
