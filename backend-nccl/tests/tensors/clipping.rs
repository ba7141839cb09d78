//! Clipping by global norm, against PyTorch.

use std::collections::HashMap;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_nccl::amp::{ClipGradNormConfig, ClipRanks, GradScalerConfig, GradientNorm};
use burn_nccl::{Error, ProcessGroup};
use serde::Deserialize;

use crate::model::{Net, rows};
use crate::{assert_close, devices, on_ranks, values};

#[derive(Deserialize)]
struct Golden {
    gradients: Gradients,
    clipped: Vec<Clipped>,
}

#[derive(Deserialize)]
struct Gradients {
    weight: [[f32; 3]; 2],
    bias: [f32; 2],
}

#[derive(Deserialize)]
struct Clipped {
    norm: GradientNorm,
    max_norm: f64,
    total: f64,
    gradients: HashMap<String, Vec<f32>>,
}

/// A layer of the golden gradients' shapes. Burn keeps weights as [inputs, outputs], which changes no norm.
fn layer(device: &Device) -> Linear {
    LinearConfig::new(2, 3).with_bias(false).init(&device.clone().autodiff())
}

fn bias(device: &Device) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::zeros([2], &device.clone().autodiff()).require_grad())
}

fn of(layer: &Linear, weight: [[f32; 3]; 2], bias: [f32; 2], device: &Device) -> GradientsParams {
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, Tensor::<2>::from_floats(weight, device));
    let id = layer.bias.as_ref().unwrap().id;
    gradients.register(id, Tensor::<1>::from_floats(bias, device));
    gradients
}

fn all(model: &Linear, gradients: &GradientsParams) -> [Vec<f32>; 2] {
    let bias = model.bias.as_ref().unwrap().id;
    [values(gradients.get::<2>(model.weight.id).unwrap()), values(gradients.get::<1>(bias).unwrap())]
}

#[test]
fn totals_and_clipped_gradients_are_those_of_pytorch() {
    let golden: Golden = serde_json::from_str(include_str!("../../reference/scaling.json")).unwrap();
    for device in devices() {
        let mut layer = layer(&device);
        layer.bias = Some(bias(&device));
        for case in &golden.clipped {
            let config = ClipGradNormConfig::new(case.max_norm).with_norm(case.norm);
            let gradients = of(&layer, golden.gradients.weight, golden.gradients.bias, &device);
            let (clipped, total) = config.clip(&layer, gradients, ClipRanks::Alone).unwrap();
            let [weight, bias] = all(&layer, &clipped);
            assert_close(&[total as f32], &[case.total as f32], 1e-6);
            assert_close(&weight, &case.gradients["weight"], 1e-6);
            assert_close(&bias, &case.gradients["bias"], 1e-6);
        }
    }
}

#[test]
fn gradients_below_the_limit_keep_their_bits() {
    let device = Device::flex();
    let mut layer = layer(&device);
    layer.bias = Some(bias(&device));
    let (weight, bias) = ([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], [0.7, 0.8]);
    let gradients = of(&layer, weight, bias, &device);
    let (clipped, _) = ClipGradNormConfig::new(2.0).clip(&layer, gradients, ClipRanks::Alone).unwrap();
    assert_eq!(all(&layer, &clipped), [weight.concat(), bias.to_vec()]);
}

#[test]
fn a9_the_limit_applies_to_unscaled_gradients() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let loss = || net.loss(rows(0, 6, &device));
    let id = net.first.weight.id;
    let clip = ClipGradNormConfig::new(0.01);
    let plain = GradientsParams::from_grads(loss().backward(), &net);
    let (plain, plain_norm) = clip.clip(&net, plain, ClipRanks::Alone).unwrap();

    let mut scaler = GradScalerConfig::new().init().unwrap();
    let scaled = GradientsParams::from_grads(scaler.scale(loss()).backward(), &net);
    let unscaled = scaler.unscale(&net, scaled).unwrap();
    let (clipped, norm) = clip.clip(&net, unscaled, ClipRanks::Alone).unwrap();
    assert_eq!(norm, plain_norm);
    assert!(norm > 0.01, "the limit must bite: {norm}");
    assert_eq!(values(clipped.get::<2>(id).unwrap()), values(plain.get::<2>(id).unwrap()));
}

#[test]
fn ranks_that_hold_shards_clip_by_the_norm_of_all() {
    // 3 and 4 on two ranks: 5 together, 7 in L1, 4 at most.
    for (norm, total) in [(GradientNorm::L2, 5.0), (GradientNorm::L1, 7.0), (GradientNorm::Max, 4.0)] {
        let found = on_ranks(2, |group| {
            let device = Device::flex();
            let own = [3.0, -4.0][group.rank()];
            let layer = LinearConfig::new(1, 1).with_bias(false).init(&device.clone().autodiff());
            let mut gradients = GradientsParams::new();
            gradients.register(layer.weight.id, Tensor::<2>::from_floats([[own]], &device));
            let config = ClipGradNormConfig::new(1.0).with_norm(norm);
            let (clipped, total) = config.clip(&layer, gradients, ClipRanks::Shards(&group)).unwrap();
            (values(clipped.get::<2>(layer.weight.id).unwrap())[0], total)
        });
        for (rank, (clipped, norm)) in found.into_iter().enumerate() {
            assert_eq!(norm, total);
            assert_close(&[clipped], &[[3.0, -4.0][rank] / total as f32], 1e-6);
        }
    }
}

#[test]
fn replicas_clip_by_one_norm_though_theirs_differ_in_the_last_bit() {
    // Rank 1 finds another norm, as a GPU may for the same gradients; here since its bias is not quite the same.
    let of_rank = [5.0_f32, 5.0_f32.next_up()];
    for norm in [GradientNorm::L2, GradientNorm::L1, GradientNorm::Max] {
        let clip = |group: Option<&ProcessGroup>, rank: usize| {
            let device = Device::flex();
            let mut layer = layer(&device);
            layer.bias = Some(bias(&device));
            let gradients = of(&layer, [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]], [of_rank[rank], 0.0], &device);
            let ranks = group.map_or(ClipRanks::Alone, ClipRanks::Replicas);
            let config = ClipGradNormConfig::new(0.7).with_norm(norm);
            let (clipped, total) = config.clip(&layer, gradients, ranks).unwrap();
            (total.to_bits(), all(&layer, &clipped)[0].clone())
        };
        assert_ne!(clip(None, 0).0, clip(None, 1).0, "{norm:?} must differ between the ranks");
        let found = on_ranks(2, |group| clip(Some(&group), group.rank()));
        assert_eq!(found, [clip(None, 0), clip(None, 0)], "{norm:?}");
    }
}

fn single(value: [f32; 2], device: &Device) -> (Linear, GradientsParams) {
    let layer = LinearConfig::new(2, 1).with_bias(false).init(&device.clone().autodiff());
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, Tensor::<1>::from_floats(value, device).reshape([2, 1]));
    (layer, gradients)
}

#[test]
fn a_norm_that_is_not_finite_is_an_error_where_that_is_asked_for_and_otherwise_shows() {
    for device in devices() {
        for norm in [GradientNorm::L1, GradientNorm::L2, GradientNorm::Max] {
            for bad in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 1.0]] {
                let config = ClipGradNormConfig::new(1.0).with_norm(norm);
                let (layer, gradients) = single(bad, &device);
                let (_, total) = config.clip(&layer, gradients, ClipRanks::Alone).unwrap();
                assert!(!total.is_finite(), "{norm:?} of {bad:?} is {total}");
                let (layer, gradients) = single(bad, &device);
                let error = config
                    .with_error_if_nonfinite(true)
                    .clip(&layer, gradients, ClipRanks::Alone)
                    .unwrap_err();
                assert!(matches!(error, Error::NonFiniteNorm { .. }));
            }
        }
    }
}

#[test]
fn tied_weights_count_once() {
    #[derive(Module, Debug)]
    struct Tied {
        one: Linear,
        other: Linear,
    }
    let device = Device::flex();
    let (layer, gradients) = single([3.0, 4.0], &device);
    let id = layer.weight.id;
    let tied = Tied { one: layer.clone(), other: layer };
    let (clipped, total) = ClipGradNormConfig::new(2.5).clip(&tied, gradients, ClipRanks::Alone).unwrap();
    assert_eq!(total, 5.0);
    assert_close(&values(clipped.get::<2>(id).unwrap()), &[1.5, 2.0], 1e-6);
}

#[test]
fn the_norm_of_a_large_gradient_is_as_exact_as_f32_allows() {
    // A million times 0.1: naive f32 sums of squares are off by more than 1e-4.
    let device = Device::flex();
    let layer = LinearConfig::new(1000, 1000).with_bias(false).init(&device.clone().autodiff());
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, Tensor::<2>::full([1000, 1000], 0.1, &device));
    let (_, total) = ClipGradNormConfig::new(1e9).clip(&layer, gradients, ClipRanks::Alone).unwrap();
    assert_close(&[total as f32], &[100.0], 1e-6);
}

#[test]
fn a_limit_that_no_gradient_could_keep_is_refused() {
    let device = Device::flex().autodiff();
    for max_norm in [0.0, -1.0, f64::NAN] {
        let (model, gradients) = single([3.0, 4.0], &device);
        let clipped = ClipGradNormConfig::new(max_norm).clip(&model, gradients, ClipRanks::Alone);
        assert!(matches!(clipped, Err(Error::InvalidMaxNorm { .. })), "{max_norm}");
    }
}
