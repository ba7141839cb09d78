//! Data-parallel steps against one process on the joined batch.

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_nccl::ddp::{
    BucketStorage, Communication, DdpConfig, DistributedDataParallel, PowerSgdConfig, UnevenInputs,
    UnusedParameters,
};
use burn_nccl::{Error, ProcessGroup};

use super::config;
use crate::model::{FEATURES, Net, alone, optimizer, parameters, rows};
use crate::{assert_close, devices, on_ranks, values};

const STEPS: usize = 4;
const PER_RANK: usize = 3;

fn small_buckets() -> DdpConfig {
    config().with_first_bucket_bytes(64).with_bucket_bytes(128)
}

/// Trains for `STEPS` steps of `PER_RANK` rows a rank and returns the parameters.
fn train(group: &ProcessGroup, device: &Device, config: &DdpConfig) -> Vec<f32> {
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(device), group, config).unwrap();
    let mut optimizer = optimizer();
    for step in 0..STEPS {
        let start = (step * group.world_size() + group.rank()) * PER_RANK;
        let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, device));
        let gradients = ddp.backward(&loss, &net).unwrap();
        net = optimizer.step(0.1, net, gradients);
    }
    parameters(&net)
}

#[test]
fn gradients_lie_where_the_options_say() {
    let device = Device::flex().autodiff();
    on_ranks(2, |group| {
        let (ddp, _) = DistributedDataParallel::new(Net::new(&device), &group, &config()).unwrap();
        assert_eq!(ddp.bucket_storage(), config().bucket_storage);
        let auto = config().with_bucket_storage(BucketStorage::Auto);
        let (ddp, _) = DistributedDataParallel::new(Net::new(&device), &group, &auto).unwrap();
        assert_eq!(ddp.bucket_storage(), BucketStorage::Host);
    });
}

#[test]
fn a_communication_that_computes_on_the_host_is_refused_for_gradients_on_the_device() {
    let device = Device::flex().autodiff();
    let config = config().with_communication(Communication::PowerSgd(PowerSgdConfig::new()));
    let outcomes =
        on_ranks(2, |group| DistributedDataParallel::new(Net::new(&device), &group, &config).err());
    for error in outcomes {
        match (config.bucket_storage, error) {
            (BucketStorage::Device, Some(Error::CommunicationHookRefused { reason, .. })) => {
                assert!(reason.contains("BucketStorage::Auto"), "{reason}");
            }
            (BucketStorage::Host, None) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn any_number_of_ranks_equals_one_process_on_the_joined_batch() {
    for device in devices() {
        let device = device.autodiff();
        for world_size in 1..=4 {
            let expected = alone(&device, STEPS, world_size * PER_RANK);
            for found in on_ranks(world_size, |group| train(&group, &device, &small_buckets())) {
                assert_close(&found, &expected, 1e-5);
            }
        }
    }
}

#[test]
fn results_have_the_same_bits_on_all_ranks_and_for_all_bucket_sizes() {
    let device = Device::flex().autodiff();
    let run = |config: DdpConfig| on_ranks(3, |group| train(&group, &device, &config));
    let one_bucket = run(config());
    assert_eq!(one_bucket[0], one_bucket[1]);
    assert_eq!(one_bucket[0], one_bucket[2]);
    assert_eq!(one_bucket, run(small_buckets()));
    assert_eq!(one_bucket, run(small_buckets().with_overlap(false)));
}

#[test]
fn half_precision_on_the_wire_stays_within_its_rounding() {
    let device = Device::flex().autodiff();
    let full = on_ranks(2, |group| train(&group, &device, &small_buckets()));
    for (format, tolerance) in [(Communication::F16, 2e-3), (Communication::BF16, 1e-2)] {
        let config = small_buckets().with_communication(format.clone());
        let compressed = on_ranks(2, |group| train(&group, &device, &config));
        assert_eq!(compressed[0], compressed[1]);
        assert_ne!(compressed[0], full[0], "{format:?} must round something");
        assert_close(&compressed[0], &full[0], tolerance);
    }
}

#[test]
fn accumulation_averages_micro_batches_and_ranks() {
    let device = Device::flex().autodiff();
    let expected = {
        let net = Net::new(&device);
        let gradients = GradientsParams::from_grads(net.loss(rows(0, 12, &device)).backward(), &net);
        values(gradients.get::<2>(net.first.weight.id).unwrap())
    };
    let found = on_ranks(2, |group| {
        let (mut ddp, net) =
            DistributedDataParallel::new(Net::new(&device), &group, &small_buckets()).unwrap();
        let start = group.rank() * 6;
        for micro_batch in 0..2 {
            let rows = rows(start + micro_batch * 2, start + micro_batch * 2 + 2, &device);
            ddp.no_sync(&ddp.hook(&net).unwrap().loss(rows)).unwrap();
        }
        let loss = ddp.hook(&net).unwrap().loss(rows(start + 4, start + 6, &device));
        let gradients = ddp.backward(&loss, &net).unwrap();
        values(gradients.get::<2>(net.first.weight.id).unwrap())
    });
    assert_eq!(found[0], found[1]);
    assert_close(&found[0], &expected, 1e-6);
}

/// One backward pass in which only ranks in `using` use the branch.
fn step_with_branch(
    group: &ProcessGroup,
    using: &[usize],
    unused: UnusedParameters,
) -> Result<(GradientsParams, Net), Error> {
    let device = Device::flex().autodiff();
    let config = small_buckets().with_unused_parameters(unused);
    let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device), group, &config)?;
    let output = ddp.hook(&net)?.forward(rows(0, 3, &device), using.contains(&group.rank()));
    let gradients = ddp.backward(&output.powi_scalar(2).mean(), &net)?;
    Ok((gradients, net))
}

#[test]
fn an_unused_parameter_is_named_on_all_ranks_in_the_same_step() {
    for error in on_ranks(2, |group| step_with_branch(&group, &[0], UnusedParameters::Refuse).err()) {
        match error {
            Some(Error::UnusedParameters { details }) => {
                assert_eq!(details, "rank 1: branch.weight, branch.bias");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_parameter_used_on_one_rank_gets_the_mean_and_one_used_nowhere_no_gradient() {
    let alone = {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let loss = net.forward(rows(0, 3, &device), true).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        values(gradients.get::<2>(net.branch.weight.id).unwrap())
    };
    let half: Vec<f32> = alone.iter().map(|gradient| gradient / 2.0).collect();
    on_ranks(2, |group| {
        let (gradients, net) = step_with_branch(&group, &[1], UnusedParameters::Allow).unwrap();
        assert_close(&values(gradients.get::<2>(net.branch.weight.id).unwrap()), &half, 1e-6);
    });
    on_ranks(2, |group| {
        let (gradients, net) = step_with_branch(&group, &[], UnusedParameters::Allow).unwrap();
        assert!(gradients.get::<2>(net.branch.weight.id).is_none());
        assert_eq!(gradients.len(), 4);
    });
}

#[test]
fn frozen_parameters_get_no_gradient_and_tied_ones_the_sum_of_their_uses() {
    /// Uses one weight twice.
    #[derive(Module, Debug)]
    struct Tied {
        one: Linear,
        two: Linear,
        frozen: Linear,
    }
    let device = Device::flex().autodiff();
    let build = || {
        let one = LinearConfig::new(FEATURES, FEATURES).with_bias(false).init(&device);
        Tied { two: one.clone(), one, frozen: LinearConfig::new(FEATURES, 1).init(&device).no_grad() }
    };
    let loss = |model: &Tied, input: Tensor<2>| {
        model.frozen.forward(model.two.forward(model.one.forward(input))).powi_scalar(2).mean()
    };
    on_ranks(2, |group| {
        let (mut ddp, model) = DistributedDataParallel::new(build(), &group, &small_buckets()).unwrap();
        let id = model.one.weight.id;
        assert_eq!(id, model.two.weight.id);
        let joined = GradientsParams::from_grads(loss(&model, rows(0, 4, &device)).backward(), &model);
        let start = group.rank() * 2;
        let loss = loss(&ddp.hook(&model).unwrap(), rows(start, start + 2, &device));
        let gradients = ddp.backward(&loss, &model).unwrap();
        assert_eq!(gradients.len(), 1);
        assert_close(&values(gradients.get::<2>(id).unwrap()), &values(joined.get::<2>(id).unwrap()), 1e-5);
    });
}

/// Rank 0 has three batches, rank 1 five. Returns the parameters and the number of optimizer steps.
fn uneven(group: &ProcessGroup, mode: UnevenInputs) -> Result<(Vec<f32>, usize), Error> {
    let device = Device::flex().autodiff();
    let config = small_buckets().with_uneven_inputs(mode);
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device), group, &config)?;
    let (mut optimizer, mut steps) = (optimizer(), 0);
    for batch in 0..[3, 5][group.rank()] {
        let start = (batch * 2 + group.rank()) * PER_RANK;
        let loss = ddp.hook(&net)?.loss(rows(start, start + PER_RANK, &device));
        let gradients = ddp.backward(&loss, &net)?;
        net = optimizer.step(0.1, net, gradients);
        steps += 1;
    }
    while let Some(gradients) = ddp.shadow(&net)? {
        net = optimizer.step(0.1, net, gradients);
        steps += 1;
    }
    Ok((parameters(&net), steps))
}

/// What one process computes with the two ranks' batches, where rank 0's part of the mean is `share` after its end.
fn uneven_reference(share: f64) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let (mut net, mut optimizer) = (Net::new(&device), optimizer());
    for batch in 0..5 {
        let (start, middle) = (batch * 2 * PER_RANK, (batch * 2 + 1) * PER_RANK);
        let loss = if batch < 3 {
            net.loss(rows(start, start + 2 * PER_RANK, &device))
        } else {
            net.loss(rows(middle, middle + PER_RANK, &device)) * share
        };
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.1, net, gradients);
    }
    parameters(&net)
}

#[test]
fn joining_ranks_end_together_with_the_right_divisor() {
    for (mode, share) in [(UnevenInputs::JoinActive, 1.0), (UnevenInputs::JoinWorld, 0.5)] {
        let found = on_ranks(2, |group| uneven(&group, mode).unwrap());
        assert_eq!(found[0], found[1]);
        assert_eq!(found[0].1, 5);
        assert_close(&found[0].0, &uneven_reference(share), 1e-5);
    }
}

#[test]
fn strict_mode_is_an_error_on_all_ranks_that_names_who_ran_out() {
    for error in on_ranks(2, |group| uneven(&group, UnevenInputs::Strict).err()) {
        match error {
            Some(Error::UnevenInputs { exhausted, world_size: 2 }) => assert_eq!(exhausted, [0]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_with_different_models_are_told_the_difference_on_every_rank() {
    let device = Device::flex().autodiff();
    let errors = on_ranks(3, |group| {
        let outputs = if group.rank() == 2 { 4 } else { 3 };
        let model = LinearConfig::new(FEATURES, outputs).init(&device);
        DistributedDataParallel::new(model, &group, &config()).err()
    });
    for error in errors {
        match error {
            Some(Error::ModelMismatch { rank: 2, differences }) => {
                assert!(
                    differences.contains("rank 0 has `weight` [5, 3] F32, rank 2 has `weight` [5, 4] F32")
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_with_different_options_are_told_so() {
    let device = Device::flex().autodiff();
    let errors = on_ranks(2, |group| {
        let config = config().with_bucket_bytes(1000 + group.rank());
        DistributedDataParallel::new(Net::new(&device), &group, &config).err()
    });
    for error in errors {
        assert!(matches!(error, Some(Error::ModelMismatch { rank: 1, .. })), "{error:?}");
    }
}

#[test]
fn every_rank_starts_from_rank_0s_values_and_running_statistics() {
    /// A layer and a norm with running statistics.
    #[derive(Module, Debug)]
    struct WithNorm {
        layer: Linear,
        norm: BatchNorm,
    }
    for device in devices() {
        let device = device.autodiff();
        let found = on_ranks(2, |group| {
            let model = WithNorm {
                layer: LinearConfig::new(FEATURES, 4).init(&device),
                norm: BatchNormConfig::new(4).init(&device),
            };
            let input = rows(group.rank() * 7, group.rank() * 7 + 6, &device);
            let _ = model.norm.forward::<2>(model.layer.forward(input));
            let before = parameters(&model.valid());
            let (ddp, model) = DistributedDataParallel::new(model, &group, &config()).unwrap();
            let after = parameters(&model);
            // Statistics drift apart in training, until they are synchronised again.
            let input = rows(group.rank() * 3, group.rank() * 3 + 6, &device);
            let _ = model.norm.forward::<2>(model.layer.forward(input));
            let drifted = parameters(&model.valid());
            let synchronised = parameters(&ddp.sync_buffers(model).unwrap());
            (before, after, drifted, synchronised)
        });
        assert_ne!(found[0].0, found[1].0);
        assert_eq!(found[0].0, found[0].1);
        assert_eq!(found[0].1, found[1].1);
        assert_ne!(found[0].2, found[1].2);
        assert_eq!(found[0].3, found[1].3);
        assert_eq!(found[0].3, found[0].2);
    }
}

#[test]
fn a_backward_pass_behind_the_reducers_back_is_reported_by_the_next_call() {
    let device = Device::flex().autodiff();
    let (mut ddp, net) =
        DistributedDataParallel::new(Net::new(&device), &ProcessGroup::single(), &config()).unwrap();
    drop(ddp.hook(&net).unwrap().loss(rows(0, 2, &device)).backward());
    let loss = ddp.hook(&net).unwrap().loss(rows(0, 2, &device));
    let error = ddp.backward(&loss, &net).map(|_| ()).unwrap_err();
    assert!(matches!(&error, Error::BackwardOutsideDdp { parameter } if parameter == "last.bias"), "{error}");
}

#[test]
fn a_model_that_gained_a_parameter_is_refused() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let (ddp, net) =
        DistributedDataParallel::new(Net::new(&device).no_grad_branch(), &group, &config()).unwrap();
    let error = ddp.hook(&Net { branch: net.branch.set_require_grad(true), ..net }).unwrap_err();
    assert!(matches!(error, Error::ModelChanged { .. }), "{error}");
}

#[test]
fn a_model_without_autodiff_or_without_trainable_parameters_is_refused() {
    let group = ProcessGroup::single();
    for model in
        [Net::new(&Device::flex().autodiff()).no_grad(), Net::new(&Device::flex().autodiff()).valid()]
    {
        let error = DistributedDataParallel::new(model, &group, &config()).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::NothingToTrain), "{error}");
    }
}

#[test]
fn gradients_survive_their_buckets_reuse() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device), &group, &small_buckets()).unwrap();
    let mut backward = |start: usize| {
        let loss = ddp.hook(&net).unwrap().loss(rows(start, start + 2, &device));
        ddp.backward(&loss, &net).unwrap().get::<2>(net.first.weight.id).unwrap()
    };
    let kept = backward(0);
    let expected = values(kept.clone());
    let other = backward(2);
    assert_ne!(values(other), expected);
    assert_eq!(values(kept), expected);
}

#[test]
fn a_parameter_loaded_under_another_id_is_still_found() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device), &group, &config()).unwrap();
    net.last.weight = Param::initialized(ParamId::new(), net.last.weight.val());
    let loss = ddp.hook(&net).unwrap().loss(rows(0, 2, &device));
    let gradients = ddp.backward(&loss, &net).unwrap();
    assert!(gradients.get::<2>(net.last.weight.id).is_some());
}

#[test]
fn micro_batches_that_were_never_reduced_are_reported_at_the_end_of_the_data() {
    let device = Device::flex().autodiff();
    let (mut ddp, net) =
        DistributedDataParallel::new(Net::new(&device), &ProcessGroup::single(), &config()).unwrap();
    ddp.no_sync(&ddp.hook(&net).unwrap().loss(rows(0, 2, &device))).unwrap();
    let error = ddp.shadow(&net).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::UnreducedGradients { micro_batches: 1 }), "{error}");
}

#[test]
fn a_step_that_failed_leaves_nothing_behind_for_the_next() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device), &group, &small_buckets()).unwrap();
    let unused = ddp.hook(&net).unwrap().forward(rows(0, 3, &device), false).powi_scalar(2).mean();
    assert!(matches!(ddp.backward(&unused, &net), Err(Error::UnusedParameters { .. })));
    let loss = ddp.hook(&net).unwrap().loss(rows(3, 5, &device));
    let found = ddp.backward(&loss, &net).unwrap();
    let alone = GradientsParams::from_grads(net.loss(rows(3, 5, &device)).backward(), &net);
    let id = net.first.weight.id;
    assert_close(&values(found.get::<2>(id).unwrap()), &values(alone.get::<2>(id).unwrap()), 1e-6);
}
