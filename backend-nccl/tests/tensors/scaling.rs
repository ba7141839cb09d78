//! Loss scaling in one process, against `torch.amp.GradScaler` and its rules.

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_nccl::Error;
use burn_nccl::amp::{GradScaler, GradScalerConfig, GradScalerState, ScaleChange};
use serde::Deserialize;

use crate::{devices, values};

#[derive(Deserialize)]
struct Golden {
    traces: Vec<Trace>,
}

/// What PyTorch did in a random sequence of steps, some of which overflowed.
#[derive(Deserialize)]
struct Trace {
    settings: serde_json::Map<String, serde_json::Value>,
    overflows: Vec<bool>,
    taken: Vec<bool>,
    scales: Vec<f64>,
    trackers: Vec<u32>,
    state: GradScalerState,
}

impl Trace {
    fn config(&self) -> GradScalerConfig {
        let config = GradScalerConfig::new().with_min_scale(0.0);
        let serde_json::Value::Object(mut fields) = serde_json::to_value(config).unwrap() else {
            unreachable!("a config is a map")
        };
        fields.extend(self.settings.clone());
        serde_json::from_value(fields.into()).unwrap()
    }
}

fn layer(device: &Device) -> Linear {
    LinearConfig::new(2, 1).with_bias(false).init(device)
}

fn optimizer() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Gradients of the scaled sum of the weights: the scale each, or an infinity.
fn gradients(scaler: &GradScaler, layer: &Linear, overflow: bool) -> GradientsParams {
    let factor = if overflow { f32::INFINITY } else { 1.0 };
    let loss = scaler.scale((layer.weight.val() * factor).sum());
    GradientsParams::from_grads(loss.backward(), layer)
}

fn weights(layer: &Linear) -> Vec<f32> {
    values(layer.weight.val().inner())
}

/// One iteration; returns whether the step was taken.
fn iterate(scaler: &mut GradScaler, layer: &mut Linear, overflow: bool) -> bool {
    let before = weights(layer);
    let gradients = gradients(scaler, layer, overflow);
    *layer = scaler.step(&mut optimizer(), 1.0, layer.clone(), gradients).unwrap();
    scaler.update().unwrap();
    before != weights(layer)
}

fn gradients_of_type(layer: &Linear, dtype: DType, values: [f32; 2]) -> GradientsParams {
    let gradient = Tensor::<1>::from_floats(values, &layer.weight.val().device().inner());
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, gradient.reshape([2, 1]).cast(dtype));
    gradients
}

#[test]
fn scales_steps_and_states_are_those_of_pytorch_over_random_overflows() {
    let golden: Golden = serde_json::from_str(include_str!("../../reference/scaling.json")).unwrap();
    for device in devices() {
        for trace in &golden.traces {
            let mut scaler = trace.config().init().unwrap();
            let mut layer = layer(&device.clone().autodiff());
            for (step, &overflow) in trace.overflows.iter().enumerate() {
                let taken = iterate(&mut scaler, &mut layer, overflow);
                let state = scaler.state().scaling.unwrap();
                assert_eq!(taken, trace.taken[step], "step {step} of {:?}", trace.settings);
                assert_eq!(state.scale, trace.scales[step] as f32, "step {step} of {:?}", trace.settings);
                assert_eq!(state.growth_tracker, trace.trackers[step], "step {step} of {:?}", trace.settings);
            }
            assert_eq!(scaler.state(), trace.state);
            let skipped = trace.taken.iter().filter(|taken| !**taken).count();
            assert_eq!(scaler.skipped_steps(), skipped as u64);
        }
    }
}

#[test]
fn a10_the_scale_grows_after_exactly_three_steps_in_a_row_and_an_overflow_starts_the_count_anew() {
    let mut scaler = GradScalerConfig::new().with_growth_interval(3).init().unwrap();
    let mut layer = layer(&Device::flex().autodiff());
    let scales = [false, false, true, false, false, false].map(|overflow| {
        iterate(&mut scaler, &mut layer, overflow);
        scaler.loss_scale().factor()
    });
    assert_eq!(scales, [65536.0, 65536.0, 32768.0, 32768.0, 32768.0, 65536.0]);
}

/// A call, with the optimizer's number.
#[derive(Clone, Copy, Debug)]
enum Call {
    Unscale(usize),
    Step(usize),
    Update,
}

#[test]
fn a9_each_order_of_calls_is_accepted_or_refused_as_by_pytorch() {
    use Call::{Step, Unscale, Update};
    let accepted: [&[Call]; 6] = [
        &[Unscale(0), Step(0), Update],
        &[Step(0), Update],
        &[Unscale(0), Update],
        &[Step(0), Update, Unscale(0), Step(0), Update],
        &[Unscale(0), Unscale(1), Step(0), Step(1), Update],
        &[Step(0), Unscale(1), Step(1), Update],
    ];
    for calls in accepted {
        assert!(play(calls).is_ok(), "{calls:?}: {:?}", play(calls));
    }
    // The last call is the one that is refused.
    let refused: [(&[Call], &str); 8] = [
        (&[Unscale(0), Unscale(0)], "optimizer 0 were unscaled twice"),
        (&[Step(0), Unscale(0)], "optimizer 0 after its step"),
        (&[Unscale(0), Step(0), Unscale(0)], "optimizer 0 after its step"),
        (&[Step(0), Step(0)], "optimizer 0 stepped twice"),
        (&[Step(0), Step(1), Step(1)], "optimizer 1 stepped twice"),
        (&[Update], "no gradients were unscaled"),
        (&[Step(0), Update, Update], "no gradients were unscaled"),
        (&[Unscale(1), Step(1), Unscale(0), Unscale(1)], "optimizer 1 after its step"),
    ];
    for (calls, text) in refused {
        assert!(play(&calls[..calls.len() - 1]).is_ok(), "{calls:?}");
        let error = play(calls).unwrap_err().to_string();
        assert!(error.contains(text), "{calls:?}: {error}");
    }
}

fn play(calls: &[Call]) -> Result<(), Error> {
    let mut scaler = GradScalerConfig::new().init()?;
    let layer = layer(&Device::flex().autodiff());
    for call in calls {
        let gradients = gradients(&scaler, &layer, false);
        match *call {
            Call::Unscale(number) => drop(scaler.optimizer(number).unscale(&layer, gradients)?),
            Call::Step(number) => {
                scaler.optimizer(number).step(&mut optimizer(), 1.0, layer.clone(), gradients)?;
            }
            Call::Update => drop(scaler.update()?),
        }
    }
    Ok(())
}

#[test]
fn of_two_optimizers_only_the_one_that_overflowed_skips_and_the_scale_shrinks_for_both() {
    let device = Device::flex().autodiff();
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let (generator, critic) = (layer(&device), layer(&device));
    let of_generator = gradients(&scaler, &generator, false);
    let of_critic = gradients(&scaler, &critic, true);
    let mut sgd = optimizer();
    let stepped = scaler.optimizer(0).step(&mut sgd, 1.0, generator.clone(), of_generator).unwrap();
    let skipped = scaler.optimizer(1).step(&mut sgd, 1.0, critic.clone(), of_critic).unwrap();
    assert_eq!(weights(&stepped), weights(&generator).iter().map(|w| w - 1.0).collect::<Vec<_>>());
    assert_eq!(weights(&skipped), weights(&critic));
    assert_eq!(scaler.update().unwrap(), ScaleChange::Reduced);
    assert_eq!((scaler.loss_scale().factor(), scaler.skipped_steps()), (32768.0, 1));
}

#[test]
fn numbers_with_which_the_scale_could_not_move_are_refused_by_name() {
    let config = GradScalerConfig::new;
    let cases = [
        (config().with_growth_factor(1.0), "growth_factor"),
        (config().with_growth_factor(f64::INFINITY), "growth_factor"),
        (config().with_backoff_factor(1.0), "backoff_factor"),
        (config().with_backoff_factor(0.0), "backoff_factor"),
        (config().with_growth_interval(0), "growth_interval"),
        (config().with_min_scale(-1.0), "min_scale"),
        (config().with_init_scale(f32::NAN), "init_scale"),
        (config().with_init_scale(f32::INFINITY), "init_scale"),
        (config().with_init_scale(0.5), "init_scale"),
    ];
    for (config, name) in cases {
        match config.init() {
            Err(Error::InvalidLossScaling { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_state_survives_json_and_continues_where_it_was_taken() {
    let device = Device::flex().autodiff();
    let config = GradScalerConfig::new().with_growth_interval(3);
    let mut scaler = config.init().unwrap();
    let mut layer = layer(&device);
    for overflow in [true, false, false] {
        iterate(&mut scaler, &mut layer, overflow);
    }
    let json = serde_json::to_value(scaler.state()).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"scale": 32768.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 2})
    );
    let mut resumed = GradScalerConfig::new().init().unwrap();
    resumed.load_state(&serde_json::from_value(json).unwrap()).unwrap();
    assert_eq!(resumed.loss_scale().factor(), 32768.0);
    iterate(&mut resumed, &mut layer, false);
    assert_eq!(resumed.loss_scale().factor(), 65536.0);
}

#[test]
fn an_empty_an_incomplete_and_an_impossible_state_are_refused_and_change_nothing() {
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let before = scaler.state();
    let empty: GradScalerState = serde_json::from_str("{}").unwrap();
    assert!(matches!(scaler.load_state(&empty), Err(Error::EmptyScalerState)));
    let incomplete = r#"{"scale": 1024.0, "growth_factor": 2.0, "growth_interval": 5}"#;
    let error = serde_json::from_str::<GradScalerState>(incomplete).unwrap_err();
    assert!(error.to_string().contains("lacks `backoff_factor`"), "{error}");
    let of_another_type = r#"{"scale": 1024.0, "growth_interval": "often"}"#;
    let error = serde_json::from_str::<GradScalerState>(of_another_type).unwrap_err();
    assert!(error.to_string().contains("often"), "{error}");
    for (name, value) in [("scale", -1.0), ("scale", 0.25), ("growth_factor", 0.5), ("backoff_factor", 2.0)] {
        let mut json = serde_json::to_value(before).unwrap();
        json[name] = value.into();
        match scaler.load_state(&serde_json::from_value(json).unwrap()) {
            Err(Error::InvalidLossScaling { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(scaler.state(), before);
}

#[test]
fn a_disabled_scaler_hands_everything_on_and_saves_an_empty_state() {
    let device = Device::flex().autodiff();
    let mut scaler = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let layer = layer(&device);
    assert_eq!(scaler.loss_scale().factor(), 1.0);
    let overflowed = gradients(&scaler, &layer, true);
    let overflowed = scaler.unscale(&layer, overflowed).unwrap();
    let overflowed = scaler.unscale(&layer, overflowed).unwrap();
    let stepped = scaler.step(&mut optimizer(), 1.0, layer, overflowed).unwrap();
    assert!(weights(&stepped).iter().all(|weight| weight.is_infinite()));
    assert_eq!(scaler.update().unwrap(), ScaleChange::Kept);
    assert_eq!(serde_json::to_string(&scaler.state()).unwrap(), "{}");
    scaler.load_state(&GradScalerState::default()).unwrap();
}

#[test]
fn an_overflow_at_the_floor_is_an_error_and_without_a_floor_the_scale_goes_on_falling() {
    let layer = layer(&Device::flex().autodiff());
    let overflow = |min_scale: f32| {
        let config = GradScalerConfig::new().with_init_scale(1.5).with_min_scale(min_scale);
        let mut scaler = config.init().unwrap();
        let gradients = gradients(&scaler, &layer, true);
        scaler.unscale(&layer, gradients).unwrap();
        (scaler.update(), scaler.loss_scale().factor())
    };
    match overflow(1.0) {
        (Err(Error::LossScaleFloor { scale, min_scale }), factor) => {
            assert_eq!((scale, min_scale, factor), (1.5, 1.0, 1.5));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(overflow(0.75), (Ok(ScaleChange::Reduced), 0.75)));
    assert!(matches!(overflow(0.0), (Ok(ScaleChange::Reduced), 0.75)));
}

#[test]
fn a_scale_that_would_grow_beyond_f32_stays() {
    let config = GradScalerConfig::new().with_init_scale(2f32.powi(127)).with_growth_interval(1);
    let mut scaler = config.init().unwrap();
    let layer = layer(&Device::flex().autodiff());
    let gradients = gradients(&scaler, &layer, false);
    assert_eq!(
        values(scaler.unscale(&layer, gradients).unwrap().get::<2>(layer.weight.id).unwrap()),
        [1.0, 1.0]
    );
    assert_eq!(scaler.update().unwrap(), ScaleChange::AtLimit);
    assert_eq!(scaler.loss_scale().factor(), 2f32.powi(127));
}

#[test]
fn a_handle_taken_early_follows_the_scale() {
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let handle = scaler.loss_scale();
    iterate(&mut scaler, &mut layer(&Device::flex().autodiff()), true);
    assert_eq!(handle.factor(), 32768.0);
}

#[test]
fn f16_gradients_are_refused_by_name_and_bf16_ones_are_unscaled() {
    let layer = layer(&Device::flex().autodiff());
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let f16 = gradients_of_type(&layer, DType::F16, [1.0, 2.0]);
    match scaler.unscale(&layer, f16) {
        Err(Error::HalfPrecisionGradient { parameter }) => assert_eq!(parameter, "weight"),
        other => panic!("{other:?}"),
    }
    let bf16 = gradients_of_type(&layer, DType::BF16, [65536.0, -131072.0]);
    let unscaled = scaler.unscale(&layer, bf16).unwrap().get::<2>(layer.weight.id).unwrap();
    assert_eq!(unscaled.dtype(), DType::BF16);
    assert_eq!(values(unscaled.cast(DType::F32)), [1.0, -2.0]);
    assert_eq!(scaler.update().unwrap(), ScaleChange::Kept);
    let overflowed = gradients_of_type(&layer, DType::BF16, [1.0, f32::NAN]);
    scaler.unscale(&layer, overflowed).unwrap();
    assert_eq!(scaler.update().unwrap(), ScaleChange::Reduced);
}

#[test]
fn a_model_without_gradients_is_an_error_in_one_process() {
    let layer = layer(&Device::flex().autodiff());
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let error = scaler.unscale(&layer, GradientsParams::new()).unwrap_err();
    assert!(matches!(error, Error::NoGradients { optimizer: 0 }));
}

#[test]
fn a_gradient_that_a_scale_below_one_takes_beyond_f32_counts_as_overflowed() {
    let config = GradScalerConfig::new().with_init_scale(0.5).with_min_scale(0.0);
    let mut scaler = config.init().unwrap();
    let layer = layer(&Device::flex().autodiff());
    let large = gradients_of_type(&layer, DType::F32, [3e38, 1.0]);
    scaler.unscale(&layer, large).unwrap();
    assert_eq!(scaler.update().unwrap(), ScaleChange::Reduced);
}

/// Gradients of one parameter in each layout, with the values they stand for.
fn layouts(device: &Device) -> Vec<(&'static str, Tensor<2>, Vec<f32>)> {
    let table = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device).reshape([2, 3]);
    vec![
        ("contiguous", table.clone() + 0.0, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("shared", table.clone(), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("transposed", (table.clone() + 0.0).transpose(), vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
        ("flipped", (table.clone() + 0.0).flip([1]), vec![3.0, 2.0, 1.0, 6.0, 5.0, 4.0]),
        ("sliced", table.clone().slice([0..2, 1..3]), vec![2.0, 3.0, 5.0, 6.0]),
        ("expanded", table.slice([0..1, 0..1]).expand([2, 2]), vec![1.0; 4]),
    ]
}

#[test]
fn gradients_of_every_layout_are_unscaled_once_and_nothing_else_is_touched() {
    for device in devices() {
        for (name, gradient, expected) in layouts(&device) {
            let mut layer = layer(&device.clone().autodiff());
            let weight = Tensor::zeros(gradient.dims(), &device.clone().autodiff()).require_grad();
            layer.weight = Param::from_tensor(weight);
            let kept = gradient.clone();
            for clone in [true, false] {
                let mut gradients = GradientsParams::new();
                // With a clone alive the memory is shared, without one the gradient may be changed in place.
                let own = if clone { gradient.clone() } else { gradient.clone() * 1.0 };
                gradients.register(layer.weight.id, own);
                let mut scaler = GradScalerConfig::new().with_init_scale(4.0).init().unwrap();
                let unscaled = scaler.unscale(&layer, gradients).unwrap();
                let found = values(unscaled.get::<2>(layer.weight.id).unwrap());
                assert_eq!(found, expected.iter().map(|value| value / 4.0).collect::<Vec<_>>(), "{name}");
                assert_eq!(values(kept.clone()), expected, "{name}: the caller's tensor changed");
                assert_eq!(scaler.update().unwrap(), ScaleChange::Kept, "{name}");
            }
        }
    }
}

#[test]
fn an_infinity_outside_of_a_gradients_view_does_not_count() {
    let device = Device::flex();
    let table = Tensor::<1>::from_floats([f32::INFINITY, 2.0, f32::NAN, 4.0], &device).reshape([2, 2]);
    let mut layer = layer(&device.clone().autodiff());
    layer.weight = Param::from_tensor(Tensor::zeros([2, 1], &device.autodiff()).require_grad());
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, table.slice([0..2, 1..2]));
    let mut scaler = GradScalerConfig::new().with_init_scale(2.0).init().unwrap();
    let unscaled = scaler.unscale(&layer, gradients).unwrap();
    assert_eq!(values(unscaled.get::<2>(layer.weight.id).unwrap()), [1.0, 2.0]);
    assert_eq!(scaler.update().unwrap(), ScaleChange::Kept);
}
