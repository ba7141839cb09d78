//! PowerSGD in data-parallel training: order, accumulation, uneven inputs, state.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_nccl::ddp::communication::HookState;
use burn_nccl::ddp::{
    Communication, DdpConfig, DistributedDataParallel, PowerSgdConfig, UnevenInputs, UnusedParameters,
};
use burn_nccl::{ProcessGroup, SyncBatchNorm, SyncBatchNormConfig};

use crate::model::{FEATURES, Net, alone, optimizer, parameters, rows};
use crate::{assert_close, on_ranks, values};

const STEPS: usize = 4;
const PER_RANK: usize = 3;

fn device() -> Device {
    Device::flex().autodiff()
}

/// From the first step, whatever gets smaller by it.
fn rank(rank: usize) -> PowerSgdConfig {
    PowerSgdConfig::new().with_rank(rank).with_start_step(0).with_min_compression_rate(1.0)
}

/// With as many columns as any matrix has.
fn full() -> PowerSgdConfig {
    rank(20).with_min_compression_rate(1e-3)
}

fn small_buckets(config: PowerSgdConfig) -> DdpConfig {
    DdpConfig::new()
        .with_first_bucket_bytes(64)
        .with_bucket_bytes(128)
        .with_communication(Communication::PowerSgd(config))
}

/// The net after some steps, from `state` on where there is one, and what the hook keeps then.
fn train(
    group: &ProcessGroup,
    config: &DdpConfig,
    steps: std::ops::Range<usize>,
    from: Option<(Net, &HookState)>,
) -> (Net, HookState) {
    let (net, state) = from.unzip();
    let net = net.unwrap_or_else(|| Net::new(&device()));
    let (mut ddp, mut net) = DistributedDataParallel::new(net, group, config).unwrap();
    if let Some(state) = state {
        ddp.load_hook_state(state).unwrap();
    }
    // Without momentum, which a resumed run would lack.
    let mut optimizer = burn::optim::SgdConfig::new().init();
    for step in steps {
        let start = (step * group.world_size() + group.rank()) * PER_RANK;
        let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
        let gradients = ddp.backward(&loss, &net).unwrap();
        net = optimizer.step(0.1, net, gradients);
    }
    let state = ddp.hook_state().expect("PowerSGD keeps a state");
    (net, state)
}

#[test]
fn full_rank_trains_as_one_process_on_the_joined_batch() {
    for overlap in [true, false] {
        let expected = alone(&device(), STEPS, 2 * PER_RANK);
        let found = on_ranks(2, |group| {
            let config = small_buckets(full()).with_overlap(overlap);
            let (mut ddp, mut net) =
                DistributedDataParallel::new(Net::new(&device()), &group, &config).unwrap();
            let mut optimizer = optimizer();
            for step in 0..STEPS {
                let start = (step * 2 + group.rank()) * PER_RANK;
                let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
                let gradients = ddp.backward(&loss, &net).unwrap();
                net = optimizer.step(0.1, net, gradients);
            }
            parameters(&net)
        });
        assert_eq!(found[0], found[1]);
        assert_close(&found[0], &expected, 1e-4);
    }
}

#[test]
fn a_low_rank_gives_the_same_bits_on_all_ranks_with_and_without_overlap() {
    let run = |overlap: bool| {
        on_ranks(3, |group| {
            parameters(&train(&group, &small_buckets(rank(1)).with_overlap(overlap), 0..STEPS, None).0)
        })
    };
    let found = run(true);
    assert!(found.iter().all(|other| *other == found[0]));
    assert_eq!(found, run(false));
    let exact = on_ranks(3, |group| parameters(&train(&group, &small_buckets(full()), 0..STEPS, None).0));
    assert_ne!(found[0], exact[0], "a rank of 1 must leave something out");
}

#[test]
fn before_its_first_step_gradients_are_averaged_whole_to_the_same_bits_as_without_it() {
    let config = small_buckets(rank(1).with_start_step(STEPS));
    let plain = config.clone().with_communication(Communication::AllReduce);
    let run = |config: &DdpConfig| {
        on_ranks(2, |group| {
            let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device()), &group, config).unwrap();
            let steps = (0..STEPS).map(|step| {
                let start = (step * 2 + group.rank()) * PER_RANK;
                let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
                let gradients = ddp.backward(&loss, &net).unwrap();
                values(gradients.get::<2>(net.first.weight.id).unwrap())
            });
            steps.collect::<Vec<_>>()
        })
    };
    assert_eq!(run(&config), run(&plain));
}

/// Synchronized norms between layers, so that their collectives fall between the buckets'.
#[derive(Module, Debug)]
struct Normed {
    layers: Vec<Linear>,
    norms: Vec<SyncBatchNorm>,
}

impl Normed {
    fn new() -> Self {
        device().seed(3);
        let layer = |inputs| LinearConfig::new(inputs, 8).init(&device());
        let layers = vec![layer(FEATURES), layer(8), layer(8)];
        Self { layers, norms: (0..3).map(|_| SyncBatchNormConfig::new(8).init(&device())).collect() }
    }

    fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        let layers = self.layers.iter().zip(&self.norms);
        layers.fold(input, |x, (layer, norm)| norm.forward(layer.forward(x))).powi_scalar(3).mean()
    }
}

#[test]
fn the_collectives_of_synchronized_norms_keep_their_place_between_those_of_a_bucket() {
    let run = |config: PowerSgdConfig, overlap: bool| {
        // Each parameter has a bucket of its own, and two all-reduces.
        let config =
            small_buckets(config).with_first_bucket_bytes(1).with_bucket_bytes(1).with_overlap(overlap);
        on_ranks(3, |group| {
            let (mut ddp, mut net) = DistributedDataParallel::new(Normed::new(), &group, &config).unwrap();
            let mut optimizer = optimizer();
            for step in 0..3 {
                let start = (step * 3 + group.rank()) * PER_RANK;
                let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
                let gradients = ddp.backward(&loss, &net).unwrap();
                net = optimizer.step(0.01, net, gradients);
            }
            parameters(&net)
        })
    };
    let found = run(rank(1), true);
    assert!(found.iter().all(|other| *other == found[0]));
    assert_eq!(found, run(rank(1), false));
    let exact = run(full().with_start_step(100), true);
    assert_close(&run(full(), true)[0], &exact[0], 1e-4);
}

#[test]
fn accumulation_averages_micro_batches_before_they_are_compressed() {
    let expected = {
        let net = Net::new(&device());
        let gradients = GradientsParams::from_grads(net.loss(rows(0, 12, &device())).backward(), &net);
        values(gradients.get::<2>(net.first.weight.id).unwrap())
    };
    let found = on_ranks(2, |group| {
        let config = small_buckets(full());
        let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device()), &group, &config).unwrap();
        let start = group.rank() * 6;
        for micro_batch in 0..2 {
            let rows = rows(start + micro_batch * 2, start + micro_batch * 2 + 2, &device());
            ddp.no_sync(&ddp.hook(&net).unwrap().loss(rows)).unwrap();
        }
        let loss = ddp.hook(&net).unwrap().loss(rows(start + 4, start + 6, &device()));
        let gradients = ddp.backward(&loss, &net).unwrap();
        values(gradients.get::<2>(net.first.weight.id).unwrap())
    });
    assert_eq!(found[0], found[1]);
    assert_close(&found[0], &expected, 1e-5);
}

#[test]
fn ranks_without_data_join_in_with_the_right_divisor() {
    let run = |config: PowerSgdConfig, mode: UnevenInputs| {
        on_ranks(2, |group| {
            let config = small_buckets(config.clone()).with_uneven_inputs(mode);
            let (mut ddp, mut net) =
                DistributedDataParallel::new(Net::new(&device()), &group, &config).unwrap();
            let mut optimizer = optimizer();
            for batch in 0..[2, 4][group.rank()] {
                let start = (batch * 2 + group.rank()) * PER_RANK;
                let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
                let gradients = ddp.backward(&loss, &net).unwrap();
                net = optimizer.step(0.1, net, gradients);
            }
            while let Some(gradients) = ddp.shadow(&net).unwrap() {
                net = optimizer.step(0.1, net, gradients);
            }
            parameters(&net)
        })
    };
    for mode in [UnevenInputs::JoinActive, UnevenInputs::JoinWorld] {
        let found = run(full(), mode);
        assert_eq!(found[0], found[1]);
        assert_close(&found[0], &run(full().with_start_step(100), mode)[0], 1e-4);
    }
}

#[test]
fn a_parameter_that_no_rank_used_gets_no_gradient() {
    on_ranks(2, |group| {
        let config = small_buckets(rank(1)).with_unused_parameters(UnusedParameters::Allow);
        let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device()), &group, &config).unwrap();
        for (with_branch, expected) in [(true, 6), (false, 4), (true, 6)] {
            let output = ddp.hook(&net).unwrap().forward(rows(0, 3, &device()), with_branch);
            let gradients = ddp.backward(&output.powi_scalar(2).mean(), &net).unwrap();
            assert_eq!(gradients.len(), expected);
        }
    });
}

#[test]
fn a_run_goes_on_from_the_saved_state_of_each_rank_to_the_same_bits() {
    let config = small_buckets(rank(1));
    let through = on_ranks(2, |group| parameters(&train(&group, &config, 0..STEPS, None).0));
    let half: Vec<_> = on_ranks(2, |group| train(&group, &config, 0..STEPS / 2, None));
    // Another size of buckets reads the same state.
    let resumed = on_ranks(2, |group| {
        let (net, state) = &half[group.rank()];
        parameters(&train(&group, &config, STEPS / 2..STEPS, Some((net.clone(), state))).0)
    });
    assert_eq!(resumed, through);
    let without = on_ranks(2, |group| {
        let (mut ddp, mut net) =
            DistributedDataParallel::new(half[group.rank()].0.clone(), &group, &config).unwrap();
        let mut optimizer = burn::optim::SgdConfig::new().init();
        for step in STEPS / 2..STEPS {
            let start = (step * 2 + group.rank()) * PER_RANK;
            let loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
            net = optimizer.step(0.1, net, ddp.backward(&loss, &net).unwrap());
        }
        parameters(&net)
    });
    assert_ne!(without, through, "the errors must matter");
}
