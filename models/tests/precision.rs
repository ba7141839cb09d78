//! A ResNet under a mixed-precision policy, which its caller need not know of.

#![cfg(feature = "flex")]

use std::sync::Mutex;

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_nccl::amp::{Autocast, AutocastConfig, Precision, widen};
use burn_nccl_models::{Depth, ResNet, ResNetConfig, Stem};

/// The generator of random numbers is the process's: one test at a time draws from its seed.
static RANDOM: Mutex<()> = Mutex::new(());

fn model(depth: Depth, device: &Device) -> ResNet {
    ResNetConfig::new(depth, 3).with_stem(Stem::Cifar).init(device)
}

/// Loss, gradient of a weight near the input, and type of the logits in a training step of `model` that runs on `copy`.
fn step(model: &ResNet, copy: &ResNet, images: Tensor<4>) -> (f32, Vec<f32>, DType) {
    let logits = copy.forward(images);
    let dtype = logits.dtype();
    let loss = widen(logits).powi_scalar(2).mean();
    let grads = loss.backward();
    let gradient = model.layer1[0].conv2.weight.grad(&grads).expect("the master gets a gradient");
    assert_eq!(gradient.dtype(), DType::F32);
    (loss.into_scalar(), gradient.into_data().try_into_vec().unwrap(), dtype)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_training_step_in_half_has_the_loss_and_the_gradient_of_f32() {
    let _alone = RANDOM.lock();
    let device = Device::flex().autodiff();
    device.seed(5);
    let model = model(Depth::ResNet18, &device);
    let images = Tensor::random([8, 3, 16, 16], Distribution::Default, &device);
    let (exact, exact_gradient, dtype) = step(&model, &model, images.clone());
    assert_eq!(dtype, DType::F32);
    // Rounding grows through 18 layers of batch norm: under torch.autocast such a network has cosines of 0.990 and 0.906.
    for (precision, half, tolerance, alignment) in
        [(Precision::F16, DType::F16, 5e-3, 0.98), (Precision::BF16, DType::BF16, 4e-2, 0.88)]
    {
        let autocast = Autocast::new(precision);
        autocast.check(&model, &device).unwrap();
        let (loss, gradient, dtype) = step(&model, &autocast.module(&model).unwrap(), images.clone());
        assert_eq!(dtype, half, "logits have the type of fc");
        assert!((loss / exact - 1.0).abs() < tolerance, "{precision}: loss {loss}, {exact} in f32");
        let cosine = cosine(&gradient, &exact_gradient);
        assert!(cosine > alignment, "{precision}: the gradients' cosine is {cosine}");
    }
}

#[test]
fn any_part_can_be_kept_in_f32() {
    let _alone = RANDOM.lock();
    let device = Device::flex().autodiff();
    device.seed(5);
    // Bottlenecks have every kind of convolution.
    let model = model(Depth::ResNet50, &device);
    let images = Tensor::random([2, 3, 8, 8], Distribution::Default, &device);
    for (path, logits) in [
        ("fc", DType::F32),
        ("conv1", DType::BF16),
        ("layer1.0.conv3", DType::BF16),
        ("layer*.0.downsample", DType::BF16),
        ("layer2", DType::BF16),
    ] {
        let config = AutocastConfig::new(Precision::BF16).with_full_precision_paths(vec![path.into()]);
        let copy = config.init().module(&model).unwrap();
        let (loss, _, dtype) = step(&model, &copy, images.clone());
        assert_eq!(dtype, logits, "{path}");
        assert!(loss.is_finite(), "{path}");
    }
}
