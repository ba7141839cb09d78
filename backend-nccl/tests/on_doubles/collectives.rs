//! Collectives of CUDA tensors between processes, against formulas.

use stubs::{Config, Stubs};

use crate::ranks::Job;

const ORDERINGS: [&str; 2] = ["context-events", "host-fence"];

/// Runs the test `inside::NAME` on ranks that share doubles which are told this.
fn on_ranks(ranks: usize, config: &Config, name: &str, variables: &[(&str, &str)]) {
    let stubs = Stubs::install(config).unwrap();
    let job = Job::new(&format!("collectives::inside::{name}"), &vec![&stubs; ranks]);
    variables.iter().fold(job, |job, (variable, value)| job.with(variable, value)).pass();
}

#[test]
fn every_collective_gives_what_its_formula_says_in_either_ordering() {
    for ordering in ORDERINGS {
        on_ranks(2, &Config::default(), "all", &[("BURN_NCCL_STREAM_ORDERING", ordering)]);
    }
}

#[test]
fn three_ranks_get_what_the_formulas_say() {
    on_ranks(3, &Config::default(), "all", &[]);
}

#[test]
fn collectives_go_by_the_host_where_they_are_told_to() {
    on_ranks(2, &Config::default(), "by_host", &[("BURN_NCCL_DEVICE_TRANSPORT", "host")]);
}

#[test]
fn slow_streams_and_memory_that_is_dropped_at_once_change_nothing() {
    for (seed, ordering) in (1..4).zip(ORDERINGS.iter().cycle()) {
        let mut config = Config::default();
        (config.cuda.seed, config.nccl.seed) = (seed, seed);
        (config.cuda.max_delay_us, config.nccl.max_delay_us) = (3000, 3000);
        on_ranks(2, &config, "in_a_row", &[("BURN_NCCL_STREAM_ORDERING", ordering)]);
    }
}

#[test]
fn a_driver_without_context_events_or_with_empty_ones_is_ordered_by_the_host() {
    let mut without = Config::default();
    without.cuda.missing = vec!["cuCtxRecordEvent".into(), "cuCtxWaitEvent".into()];
    let mut empty = Config::default();
    empty.cuda.context_events_are_empty = true;
    for config in [without, empty] {
        on_ranks(2, &config, "ordered_by_host", &[]);
    }
}

#[test]
fn a_group_of_one_uses_nccl_when_it_is_told_to_and_nothing_otherwise() {
    on_ranks(1, &Config::default(), "alone", &[("BURN_NCCL_DEVICE_TRANSPORT", "nccl")]);
    on_ranks(1, &Config::default(), "alone", &[]);
}

/// Started by the tests above as ranks.
mod inside {
    use burn::tensor::{DType, Device, Tensor, TensorData};
    use burn_nccl::{ReduceOp, StreamOrdering, functions};

    use crate::ranks::Rank;

    /// One element, an odd number, a multiple of the allocation's granularity, and more than one of NCCL's pieces. All are
    /// multiplied by the number of ranks, which divides what is scattered.
    const LENGTHS: [usize; 4] = [1, 333, 4096, 20_003];
    const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
    const OPS: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// A small integer, so that every sum is exact in bf16 too.
    fn value(rank: usize, index: usize) -> f64 {
        ((index * 7 + rank * 13) % 37) as f64 - 18.0
    }

    fn tensor(values: impl Iterator<Item = f64>, dtype: DType, device: &Device) -> Tensor<1> {
        let values: Vec<f64> = values.collect();
        let len = values.len();
        Tensor::from_data(TensorData::new(values, [len]).convert_dtype(dtype), (device, dtype))
    }

    fn reduced(op: ReduceOp, ranks: usize, index: usize) -> f64 {
        let values = (0..ranks).map(|rank| value(rank, index));
        match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Mean => values.sum::<f64>() / ranks as f64,
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Product => values.product(),
        }
    }

    /// Compares element by element, up to one rounding of the type.
    #[track_caller]
    fn assert_values(found: Tensor<1>, expected: impl Fn(usize) -> f64, what: &str) {
        let dtype = found.dtype();
        let epsilon = match dtype {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F16 => 1.0 / 1024.0,
            _ => 1.0 / 128.0,
        };
        for (index, found) in found.into_data().iter::<f64>().enumerate() {
            let expected = expected(index);
            let is_close = (found - expected).abs() <= epsilon * expected.abs();
            assert!(is_close, "{what} of {dtype:?}, element {index}: {found} instead of {expected}");
        }
    }

    /// Every collective on every type and length, with the operand kept or not: then it may be written in place.
    fn play(rank: &Rank) {
        for dtype in DTYPES {
            for len in LENGTHS {
                for is_kept in [false, true] {
                    one(rank, dtype, len * rank.group.world_size(), is_kept);
                }
            }
        }
    }

    fn one(rank: &Rank, dtype: DType, len: usize, is_kept: bool) {
        let (group, own, ranks) = (&rank.group, rank.number(), rank.group.world_size());
        let share = len / ranks;
        let operand = || {
            let tensor = tensor((0..len).map(|index| value(own, index)), dtype, &rank.device);
            let kept = is_kept.then(|| tensor.clone());
            (tensor, kept)
        };
        // What another owner of the operand sees must not change.
        let check_kept = |kept: Option<Tensor<1>>, what: &str| {
            kept.into_iter().for_each(|kept| assert_values(kept, |index| value(own, index), what));
        };
        for op in OPS {
            let (tensor, kept) = operand();
            let what = format!("all_reduce {op:?}");
            let found = functions::all_reduce(tensor, op, group).unwrap();
            assert_eq!(found.dims(), [len]);
            assert_values(found, |index| reduced(op, ranks, index), &what);
            check_kept(kept, &what);
            let (tensor, kept) = operand();
            let what = format!("reduce_scatter {op:?}");
            let found = functions::reduce_scatter(tensor, op, group).unwrap();
            assert_eq!(found.dims(), [share]);
            assert_values(found, |index| reduced(op, ranks, own * share + index), &what);
            check_kept(kept, &what);
        }
        for root in 0..ranks {
            let (tensor, kept) = operand();
            let found = functions::broadcast(tensor, root, group).unwrap();
            assert_values(found, |index| value(root, index), "broadcast");
            check_kept(kept, "broadcast");
        }
        let (tensor, kept) = operand();
        let found = functions::all_gather(tensor, group).unwrap();
        assert_eq!(found.dims(), [len * ranks]);
        assert_values(found, |index| value(index / len, index % len), "all_gather");
        check_kept(kept, "all_gather");
        let (tensor, kept) = operand();
        let found = functions::all_to_all(tensor, group).unwrap();
        assert_values(found, |index| value(index / share, own * share + index % share), "all_to_all");
        check_kept(kept, "all_to_all");
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn all() {
        let rank = Rank::join();
        play(&rank);
        let report = rank.group.device_transport_report().expect("they went by NCCL");
        let asked = std::env::var("BURN_NCCL_STREAM_ORDERING").unwrap_or("context-events".into());
        assert_eq!(report.stream_ordering.name(), asked);
        assert_eq!(report.nccl_version, "2.27.3");
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn by_host() {
        let rank = Rank::join();
        play(&rank);
        assert_eq!(rank.group.device_transport_report(), None);
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn ordered_by_host() {
        let rank = Rank::join();
        one(&rank, DType::F32, 1000 * rank.group.world_size(), true);
        let report = rank.group.device_transport_report().expect("they went by NCCL");
        assert_eq!(report.stream_ordering, StreamOrdering::HostFence);
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn alone() {
        let rank = Rank::join();
        one(&rank, DType::F32, 1000, true);
        one(&rank, DType::BF16, 1000, false);
        let by_nccl = std::env::var_os("BURN_NCCL_DEVICE_TRANSPORT").is_some();
        assert_eq!(rank.group.device_transport_report().is_some(), by_nccl);
        rank.leave();
    }

    /// Results feed the next collectives, nothing is read in between, and what is not needed any more is dropped while the
    /// collective that uses it may still wait for its turn on the device.
    #[test]
    #[ignore = "started as a rank by a test above"]
    fn in_a_row() {
        let rank = Rank::join();
        let (group, own, ranks) = (&rank.group, rank.number(), rank.group.world_size());
        for round in 0..10 {
            let len = 1000 + 100 * round;
            let first = tensor((0..len).map(|index| value(own + round, index)), DType::F32, &rank.device);
            let sum = functions::all_reduce(first.clone(), ReduceOp::Sum, group).unwrap();
            drop(first);
            // Gives memory that nobody holds back to the driver, which frees it at once.
            rank.device.memory_cleanup();
            // Other tensors take the memory that has become free.
            let others: Vec<_> =
                (0..4).map(|_| tensor(std::iter::repeat_n(-1.0, len), DType::F32, &rank.device)).collect();
            let gathered = functions::all_gather(sum.clone(), group).unwrap();
            let greatest = functions::all_reduce(gathered, ReduceOp::Max, group).unwrap();
            drop((sum, others));
            let expected =
                |index: usize| (0..ranks).map(|rank| value(rank + round, index % len)).sum::<f64>();
            assert_values(greatest, expected, "three collectives in a row");
        }
        rank.leave();
    }
}
