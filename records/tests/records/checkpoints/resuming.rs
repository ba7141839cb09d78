//! A training that was resumed is the training that was not interrupted.

use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Tensor};
use burn_nccl::amp::GradScalerConfig;
use burn_nccl_records::Error;
use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, CheckpointFailure, TrainingState};
use serde_json::json;

use super::training::{
    LEARNING_RATE, adam, at, device, loss, net, open, plain, saved, sgd, state, train, values,
};

const HALF: u64 = 5;

/// Asserts that steps, a save, a load into other objects and steps are as the same steps without a pause.
fn assert_exact(optimizer: fn() -> ModuleOptimizer) {
    let folder = tempfile::tempdir().unwrap();
    let mut straight = optimizer();
    let expected = train(net(1), &mut straight, 0..2 * HALF);

    let mut first = optimizer();
    let half = train(net(1), &mut first, 0..HALF);
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&half, &first, state(HALF)).unwrap();
    checkpointer.finish().unwrap();
    drop((half, first));

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.state(), &state(HALF));
    // Other values and other ids, until they are loaded.
    let resumed = checkpoint.load_model(&net(2)).unwrap();
    let mut second = checkpoint.load_optimizer(optimizer(), &resumed).unwrap();
    let resumed = train(resumed, &mut second, HALF..2 * HALF);
    assert_eq!(values(&resumed), values(&expected));
}

// C13
#[test]
fn sgd_with_momentum_goes_on_bit_for_bit() {
    assert_exact(sgd);
}

#[test]
fn adam_goes_on_bit_for_bit() {
    assert_exact(adam);
}

#[test]
fn an_optimizer_without_state_goes_on_bit_for_bit() {
    assert_exact(|| SgdConfig::new().init());
}

#[test]
fn an_optimizer_of_the_users_own_goes_on_bit_for_bit() {
    assert_exact(plain);
}

#[test]
fn a_training_that_has_not_begun_can_be_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (start, optimizer) = (net(1), adam());
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&start, &optimizer, state(0)).unwrap();
    checkpointer.finish().unwrap();
    let checkpoint = Checkpoint::open(at(folder.path(), 0)).unwrap();
    let loaded = checkpoint.load_model(&net(2)).unwrap();
    assert_eq!(values(&loaded), values(&start));
    assert!(checkpoint.load_optimizer(adam(), &loaded).unwrap().to_record().is_empty());
}

#[test]
fn a_model_that_has_run_loses_what_it_had_left_to_add_to_its_running_statistics() {
    let folder = saved(&[(1, None)], CheckpointConfig::default());
    let expected = train(net(1), &mut sgd(), 0..1);
    let other = train(net(2), &mut sgd(), 7..9);
    let loaded = Checkpoint::open(folder.path()).unwrap().load_model(&other).unwrap();
    assert_eq!(values(&loaded), values(&expected));
}

// C14
#[test]
fn the_scaler_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let config = GradScalerConfig::new().with_init_scale(1024.0).with_growth_interval(3);
    let mut scaler = config.init().unwrap();
    let mut optimizer = sgd();
    let mut model = net(1);
    for step in 0..4 {
        let scaled = scaler.scale(loss(&model, step));
        let gradients = GradientsParams::from_grads(scaled.backward(), &model);
        model = scaler.step(&mut optimizer, LEARNING_RATE, model, gradients).unwrap();
        scaler.update().unwrap();
    }
    let before = scaler.state();
    let scaling = before.scaling.unwrap();
    assert_eq!((scaling.scale, scaling.growth_tracker), (2048.0, 1));

    let state = TrainingState { scaler: Some(before), ..state(4) };
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&model, &optimizer, state).unwrap();
    checkpointer.finish().unwrap();
    let mut resumed = config.init().unwrap();
    resumed.load_state(&Checkpoint::open(folder.path()).unwrap().state().scaler.unwrap()).unwrap();
    assert_eq!(resumed.state(), before);
}

#[test]
fn what_the_caller_keeps_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let kept = TrainingState {
        epoch: 2,
        metric: Some(0.1 + 0.2),
        config: json!({ "recipe": "resnet", "lr": 0.1 }),
        history: json!([{ "loss": 1.0 / 3.0 }]),
        ..state(7)
    };
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&net(1), &sgd(), kept.clone()).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().state(), &kept);
}

#[test]
fn a_state_of_another_optimizer_or_other_settings_is_refused() {
    let folder = saved(&[(1, None)], CheckpointConfig::default());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let model = checkpoint.load_model(&net(2)).unwrap();
    for optimizer in [adam(), plain()] {
        let error = checkpoint.load_optimizer(optimizer, &model).err().expect("another optimizer");
        assert!(matches!(&error, Error::CheckpointOptimizer { .. }), "{error}");
        assert!(error.to_string().contains("another kind of optimizer"), "{error}");
    }
}

#[test]
fn a_state_for_a_model_that_was_not_loaded_is_refused() {
    let folder = saved(&[(1, None)], CheckpointConfig::default());
    let error = Checkpoint::open(folder.path()).unwrap().load_optimizer(sgd(), &net(1)).err();
    let error = error.expect("the model has other ids").to_string();
    assert!(error.contains("belongs to no parameter of the model"), "{error}");
}

#[test]
fn a_state_that_would_come_back_in_another_type_is_refused_when_it_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = LinearConfig::new(2, 2).with_bias(false).init(&device());
    model.weight = model.weight.map(|weight| weight.cast(DType::F64).detach().require_grad());
    let mut optimizer = sgd();
    let input = Tensor::<2>::ones([1, 2], &device()).cast(DType::F64);
    let gradients = GradientsParams::from_grads(model.forward(input).sum().backward(), &model);
    let model = optimizer.step(0.1, model, gradients);
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&model, &optimizer, state(1)).unwrap();
    let error = checkpointer.wait().unwrap_err();
    let Error::CheckpointNotSaved { step: 1, failure: CheckpointFailure::Optimizer { reason }, .. } = &error
    else {
        panic!("{error}")
    };
    assert!(reason.contains("is f64 and Burn would restore it as f32"), "{reason}");
}
