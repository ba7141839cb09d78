//! Gradients in flat buckets on the device, as data-parallel training moves them, and the parameters that it gives to all.

use stubs::{Config, Stubs};

use crate::ranks::Job;

fn on_ranks(config: &Config, name: &str, ordering: &str) {
    let stubs = Stubs::install(config).unwrap();
    let job = Job::new(&format!("buckets::inside::{name}"), &[&stubs, &stubs]);
    job.with("BURN_NCCL_STREAM_ORDERING", ordering).pass();
}

fn slow(seed: u64) -> Config {
    let mut config = Config::default();
    (config.cuda.seed, config.nccl.seed) = (seed, seed);
    (config.cuda.max_delay_us, config.nccl.max_delay_us) = (2000, 2000);
    config
}

#[test]
fn parts_are_averaged_in_place_and_handed_out_as_views() {
    for ordering in ["context-events", "host-fence"] {
        on_ranks(&slow(1), "steps", ordering);
    }
}

#[test]
fn buckets_that_nobody_waits_for_harm_nothing() {
    for ordering in ["context-events", "host-fence"] {
        on_ranks(&slow(2), "forgotten", ordering);
    }
}

#[test]
fn every_rank_starts_with_the_parameters_of_rank_0() {
    on_ranks(&Config::default(), "parameters", "auto");
}

/// Started by the tests above as ranks.
mod inside {
    use std::ops::Range;

    use burn::backend::Dispatch;
    use burn::module::{Module, Param};
    use burn::tensor::{Tensor, TensorData};
    use burn_nccl::{
        AsyncCall, BucketParts, CollectiveBackend, DdpConfig, DistributedDataParallel, FlatBucket, ReduceOp,
        functions,
    };

    use crate::ranks::{Rank, assert_no_faults};

    /// Elements of an f32 that begin at the device's alignment of 512 bytes.
    const ALIGNED: usize = 128;

    fn value(rank: usize, step: usize, index: usize) -> f32 {
        ((index * 5 + rank * 11 + step * 3) % 41) as f32 - 20.0
    }

    /// Parts of odd lengths at aligned places, with a gap behind each, as the plan of buckets has them.
    fn bucket(bucket: usize) -> FlatBucket {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for len in [1, 100 + bucket, 512, 3000] {
            let start = ranges.last().map_or(0, |last| last.end.next_multiple_of(ALIGNED));
            ranges.push(start..start + len);
        }
        let len = ranges.last().map_or(0, |last| last.end.next_multiple_of(ALIGNED));
        FlatBucket { ranges, len }
    }

    fn start(rank: &Rank, contents: &FlatBucket, step: usize) -> (Tensor<1>, AsyncCall) {
        let call = AsyncCall::new(&rank.group);
        let part = |range: &Range<usize>| {
            let values: Vec<f32> = range.clone().map(|index| value(rank.number(), step, index)).collect();
            Tensor::<1>::from_data(TensorData::new(values, [range.len()]), &rank.device).into_dispatch()
        };
        let parts = BucketParts(contents.ranges.iter().map(part).collect());
        // The parts belong to nobody else, so that their memory is free as soon as they have been copied.
        let flat = Dispatch::group_bucket_start(parts, contents.clone(), ReduceOp::Mean, call.clone());
        call.started().unwrap();
        (Tensor::from_dispatch(flat), call)
    }

    fn averaged(ranks: usize, step: usize, index: usize) -> f32 {
        (0..ranks).map(|rank| value(rank, step, index)).sum::<f32>() / ranks as f32
    }

    fn views(flat: Tensor<1>, contents: &FlatBucket) -> Vec<Tensor<1>> {
        let parts = Dispatch::bucket_parts(flat.into_dispatch(), contents.clone());
        parts.into_iter().map(Tensor::from_dispatch).collect()
    }

    fn assert_views(views: Vec<Tensor<1>>, contents: &FlatBucket, ranks: usize, step: usize) {
        assert_eq!(views.len(), contents.ranges.len());
        for (view, range) in views.into_iter().zip(&contents.ranges) {
            let found = view.into_data().try_to_vec::<f32>().unwrap();
            let expected: Vec<f32> = range.clone().map(|index| averaged(ranks, step, index)).collect();
            assert_eq!(found, expected, "step {step}, elements {range:?}");
        }
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn steps() {
        let rank = Rank::join();
        let (ranks, contents): (usize, Vec<FlatBucket>) =
            (rank.group.world_size(), (0..4).map(bucket).collect());
        let mut kept = Vec::new();
        for step in 0..5 {
            let flights: Vec<_> = contents.iter().map(|contents| start(&rank, contents, step)).collect();
            // Gives memory that nobody holds back to the driver, which frees it at once.
            rank.device.memory_cleanup();
            for ((flat, call), contents) in flights.into_iter().zip(&contents) {
                call.wait().unwrap();
                let views = views(flat.clone(), contents);
                // What is between the parts is zero, so that it adds nothing to a norm of the whole.
                let whole = flat.into_data().try_to_vec::<f32>().unwrap();
                for (index, value) in whole.iter().enumerate() {
                    let is_part = contents.ranges.iter().any(|range| range.contains(&index));
                    assert!(is_part || *value == 0.0, "step {step}, gap at {index}: {value}");
                }
                kept.push((views, contents.clone(), step));
            }
            // The views of the step before have lived beside the buckets of this one.
            if step > 0 {
                for (views, contents, step) in kept.drain(..contents.len()) {
                    assert_views(views, &contents, ranks, step);
                }
            }
        }
        for (views, contents, step) in kept {
            assert_views(views, &contents, ranks, step);
        }
        rank.leave();
    }

    /// A step whose results nobody wants: the memory is given back while the device may still be at it.
    #[test]
    #[ignore = "started as a rank by a test above"]
    fn forgotten() {
        let rank = Rank::join();
        let contents = bucket(0);
        for step in 0..6 {
            drop(start(&rank, &contents, step));
            rank.device.memory_cleanup();
            let (flat, call) = start(&rank, &contents, step + 100);
            drop(flat);
            call.wait().unwrap();
            let (flat, call) = start(&rank, &contents, step + 200);
            call.wait().unwrap();
            let views = views(flat, &contents);
            assert_views(views, &contents, rank.group.world_size(), step + 200);
        }
        // The group is left with buckets under way.
        drop(start(&rank, &contents, 1));
        rank.leave();
    }

    #[derive(Module, Debug)]
    struct Net {
        weight: Param<Tensor<1>>,
        bias: Param<Tensor<1>>,
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn parameters() {
        let rank = Rank::join();
        let device = rank.device.clone().autodiff();
        let param = |len: usize| {
            let values: Vec<f32> = (0..len).map(|index| value(rank.number(), 0, index)).collect();
            Param::from_tensor(Tensor::<1>::from_data(TensorData::new(values, [len]), &device))
        };
        let net = Net { weight: param(1000), bias: param(7) };
        let (ddp, net) = DistributedDataParallel::new(net, &rank.group, &DdpConfig::new()).unwrap();
        for tensor in [net.weight.val(), net.bias.val()] {
            let found = tensor.into_data().try_to_vec::<f32>().unwrap();
            let expected: Vec<f32> = (0..found.len()).map(|index| value(0, 0, index)).collect();
            assert_eq!(found, expected);
        }
        assert!(rank.group.device_transport_report().is_some(), "the parameters went by NCCL");
        // The group lives on in `ddp`, and leaves with it.
        let sum = Tensor::<1>::from_data([1.0], &rank.device);
        let sum = functions::all_reduce(sum, ReduceOp::Sum, &rank.group).unwrap();
        assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [rank.group.world_size() as f32]);
        drop((ddp, rank));
        assert_no_faults();
    }
}
