//! Loss scaling on several ranks: all skip a step or none does.

use std::time::{Duration, Instant};

use burn::optim::GradientsParams;
use burn::tensor::{DType, Device};
use burn_nccl::amp::{GradScaler, GradScalerConfig};
use burn_nccl::ddp::{DistributedDataParallel, UnevenInputs};
use burn_nccl::{Error, ProcessGroup};

use super::config;
use crate::model::{Net, alone, optimizer, parameters, rows};
use crate::{assert_close, on_ranks, values};

const STEPS: usize = 5;
const PER_RANK: usize = 3;

fn device() -> Device {
    Device::flex().autodiff()
}

fn scaler(group: &ProcessGroup) -> GradScaler {
    GradScalerConfig::new().init().unwrap().with_group(group)
}

/// Gradients of this rank's rows alone.
fn own_gradients(net: &Net, scaler: &GradScaler, rank: usize) -> GradientsParams {
    let loss = scaler.scale(net.loss(rows(rank * PER_RANK, (rank + 1) * PER_RANK, &device())));
    GradientsParams::from_grads(loss.backward(), net)
}

fn with_an_infinity(net: &Net, mut gradients: GradientsParams) -> GradientsParams {
    let gradient = gradients.remove::<2>(net.last.weight.id).unwrap();
    gradients.register(net.last.weight.id, gradient * f32::INFINITY);
    gradients
}

/// Trains with data-parallel gradients that `spoil` changes after their reduction; returns what each rank has.
fn train(
    group: &ProcessGroup,
    factor: impl Fn(usize, usize) -> f32,
    spoil: impl Fn(usize, usize, &Net, GradientsParams) -> GradientsParams,
) -> (Vec<f32>, f32, u64) {
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device()), group, &config()).unwrap();
    let (mut optimizer, mut scaler) = (optimizer(), scaler(ddp.group()));
    for step in 0..STEPS {
        let start = (step * group.world_size() + group.rank()) * PER_RANK;
        let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
        let loss = scaler.scale(loss * factor(step, group.rank()));
        let gradients = ddp.backward(&loss, &net).unwrap();
        let gradients = spoil(step, group.rank(), &net, gradients);
        net = scaler.step(&mut optimizer, 0.1, net, gradients).unwrap();
        scaler.update().unwrap();
    }
    (parameters(&net), scaler.loss_scale().factor(), scaler.skipped_steps())
}

#[test]
fn scaled_data_parallel_training_equals_one_process_on_the_joined_batch() {
    let expected = alone(&device(), STEPS, 2 * PER_RANK);
    for (found, scale, skipped) in on_ranks(2, |group| train(&group, |_, _| 1.0, |_, _, _, it| it)) {
        assert_close(&found, &expected, 1e-5);
        assert_eq!((scale, skipped), (65536.0, 0));
    }
}

#[test]
fn a1_a_rank_with_another_scale_is_named_on_every_rank() {
    let errors = on_ranks(3, |group| {
        let scale = if group.rank() == 1 { 1024.0 } else { 65536.0 };
        let config = GradScalerConfig::new().with_init_scale(scale);
        let mut scaler = config.init().unwrap().with_group(&group);
        let net = Net::new(&device());
        let gradients = own_gradients(&net, &scaler, group.rank());
        scaler.unscale(&net, gradients).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::LossScaleMismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 0 has 65536") && text.contains("rank 1 has 1024"), "{text}");
    }
}

#[test]
fn a1_an_overflow_in_rank_1s_loss_makes_both_skip_and_both_have_32768() {
    let factor = |step, rank| if (step, rank) == (2, 1) { f32::INFINITY } else { 1.0 };
    let ends = on_ranks(2, |group| train(&group, factor, |_, _, _, gradients| gradients));
    assert_eq!(ends[0], ends[1]);
    assert_eq!((ends[0].1, ends[0].2), (32768.0, 1));
    assert!(ends[0].0.iter().all(|value| value.is_finite()));
}

#[test]
fn a2_an_infinity_on_rank_0_after_the_reduction_makes_both_skip() {
    let ends = on_ranks(2, |group| {
        train(
            &group,
            |_, _| 1.0,
            |step, rank, net, gradients| {
                if (step, rank) == (3, 0) { with_an_infinity(net, gradients) } else { gradients }
            },
        )
    });
    assert_eq!(ends[0], ends[1]);
    assert_eq!((ends[0].1, ends[0].2), (32768.0, 1));
}

/// Rank 1 has no loss in the third step: it joins the others' reduction there.
fn without_a_loss_on_rank_1(group: &ProcessGroup, mode: UnevenInputs) -> Result<(Vec<f32>, u64), Error> {
    let config = config().with_uneven_inputs(mode);
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device()), group, &config)?;
    let (mut optimizer, mut scaler) = (optimizer(), scaler(group));
    for step in 0..STEPS {
        let gradients = if (step, group.rank()) == (2, 1) {
            ddp.shadow(&net)?.unwrap_or_default()
        } else {
            let start = (step * 2 + group.rank()) * PER_RANK;
            let loss = ddp.hook(&net)?.loss(rows(start, start + PER_RANK, &device()));
            ddp.backward(&scaler.scale(loss), &net)?
        };
        net = scaler.step(&mut optimizer, 0.1, net, gradients)?;
        scaler.update()?;
    }
    Ok((parameters(&net), scaler.skipped_steps()))
}

#[test]
fn a4_a_rank_without_a_loss_in_one_step_joins_in_by_shadowing() {
    let expected = {
        let (mut net, mut optimizer) = (Net::new(&device()), optimizer());
        for step in 0..STEPS {
            let count = if step == 2 { PER_RANK } else { 2 * PER_RANK };
            let start = step * 2 * PER_RANK;
            let loss = net.loss(rows(start, start + count, &device()));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(0.1, net, gradients);
        }
        parameters(&net)
    };
    for end in on_ranks(2, |group| without_a_loss_on_rank_1(&group, UnevenInputs::JoinActive)) {
        let (found, skipped) = end.unwrap();
        assert_close(&found, &expected, 1e-5);
        assert_eq!(skipped, 0);
    }
}

#[test]
fn a4_a_rank_without_a_loss_is_an_error_on_all_ranks_where_joining_in_is_not_asked_for() {
    let start = Instant::now();
    let ends = on_ranks(2, |group| without_a_loss_on_rank_1(&group, UnevenInputs::Strict));
    assert!(ends.iter().all(|end| matches!(end, Err(Error::UnevenInputs { .. }))), "{ends:?}");
    let ends = on_ranks(2, |group| without_a_loss_on_rank_1(&group, UnevenInputs::Even));
    assert!(ends.iter().all(|end| matches!(end, Err(Error::Collective { .. }))), "{ends:?}");
    assert!(start.elapsed() < Duration::from_secs(30), "an error came only with the deadline");
}

#[test]
fn a4_a_rank_without_gradients_takes_part_in_the_decision() {
    let skips = on_ranks(2, |group| {
        let mut scaler = scaler(&group);
        let net = Net::new(&device());
        let own = match group.rank() {
            0 => with_an_infinity(&net, own_gradients(&net, &scaler, 0)),
            _ => GradientsParams::new(),
        };
        let gate = scaler.optimizer(0).gate(&net, own).unwrap();
        scaler.update().unwrap();
        (gate.is_none(), scaler.loss_scale().factor())
    });
    assert_eq!(skips, [(true, 32768.0); 2]);
}

#[test]
fn an_error_of_one_rank_reaches_the_others_at_once() {
    let start = Instant::now();
    let ends = on_ranks(2, |group| {
        let mut scaler = scaler(&group);
        let net = Net::new(&device());
        let mut gradients = own_gradients(&net, &scaler, group.rank());
        if group.rank() == 1 {
            let gradient = gradients.remove::<2>(net.last.weight.id).unwrap();
            gradients.register(net.last.weight.id, gradient.cast(DType::F16));
        }
        scaler.unscale(&net, gradients).map(drop)
    });
    assert!(
        matches!(&ends[1], Err(Error::HalfPrecisionGradient { parameter }) if parameter == "last.weight")
    );
    let error = ends[0].as_ref().unwrap_err();
    assert!(error.failure().is_some(), "{error}");
    assert!(error.to_string().contains("last.weight"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30), "the error came only with the deadline");
}

#[test]
fn a_copy_of_a_reduced_gradient_keeps_its_values_when_the_gradient_is_unscaled() {
    on_ranks(2, |group| {
        let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device()), &group, &config()).unwrap();
        let mut scaler = scaler(&group);
        let loss = ddp.hook(&net).unwrap().loss(rows(0, PER_RANK, &device()));
        let gradients = ddp.backward(&scaler.scale(loss), &net).unwrap();
        let id = net.first.weight.id;
        let scaled = gradients.get::<2>(id).unwrap();
        let before = values(scaled.clone());
        let unscaled = values(scaler.unscale(&net, gradients).unwrap().get::<2>(id).unwrap());
        assert_eq!(values(scaled), before);
        assert_eq!(unscaled, before.iter().map(|value| value / 65536.0).collect::<Vec<_>>());
    });
}
