//! What is wrong before anything is computed: the same typed error, with what to do, on every rank.

use stubs::{Config, Device, Stubs};

use crate::ranks::Job;

/// Two ranks, each on doubles that are told something else, in one of the cases below.
fn job(case: &str, configs: [&Config; 2]) -> (Job, [Stubs; 2]) {
    let stubs = configs.map(|config| Stubs::install(config).unwrap());
    let job = Job::new(&format!("refusals::inside::{case}"), &[&stubs[0], &stubs[1]]);
    (job, stubs)
}

fn with_version(version: i32) -> Config {
    let mut config = Config::default();
    config.nccl.version = version;
    config
}

#[test]
fn a_rank_without_nccl_is_named_with_how_to_install_it() {
    let (job, _stubs) = job("no_nccl", [&Config::default(); 2]);
    job.with_on(1, "BURN_NCCL_LIBRARY", "/nowhere/libnccl.so.2").pass();
}

#[test]
fn a_rank_without_the_driver_is_named() {
    let (job, _stubs) = job("no_driver", [&Config::default(); 2]);
    job.with_on(1, "BURN_NCCL_CUDA_LIBRARY", "/nowhere/libcuda.so.1").pass();
}

#[test]
fn an_nccl_that_lacks_a_function_is_named_with_it() {
    let mut lacking = Config::default();
    lacking.nccl.missing = vec!["ncclCommInitRankConfig".into()];
    let (job, _stubs) = job("no_function", [&Config::default(), &lacking]);
    job.pass();
}

#[test]
fn an_nccl_that_is_too_old_is_named_with_the_oldest_that_works() {
    let (job, _stubs) = job("too_old", [&Config::default(), &with_version(21602)]);
    job.pass();
}

#[test]
fn versions_of_nccl_that_differ_are_named() {
    let (job, _stubs) = job("mixed", [&Config::default(), &with_version(22803)]);
    job.pass();
}

#[test]
fn two_ranks_on_one_gpu_are_named_with_it() {
    let (job, _stubs) = job("shared", [&Config::default(); 2]);
    job.pass();
}

#[test]
fn more_ranks_than_gpus_are_refused_on_every_rank() {
    let mut one_gpu = Config::default();
    one_gpu.cuda.devices = vec![Device::numbered(0)];
    let (job, _stubs) = job("too_many", [&one_gpu; 2]);
    job.pass();
}

#[test]
fn a_rank_that_has_no_memory_for_a_bucket_ends_the_group_with_the_size() {
    let mut small = Config::default();
    small.cuda.devices.iter_mut().for_each(|device| device.memory_bytes = 64 << 20);
    let (job, _stubs) = job("no_memory", [&Config::default(), &small]);
    job.pass();
}

#[test]
fn an_ordering_that_the_driver_of_one_rank_cannot_do_is_refused() {
    let mut old = Config::default();
    old.cuda.missing = vec!["cuCtxRecordEvent".into(), "cuCtxWaitEvent".into()];
    let (job, _stubs) = job("no_ordering", [&Config::default(), &old]);
    job.with("BURN_NCCL_STREAM_ORDERING", "context-events").pass();
}

#[test]
fn a_collective_in_a_capture_is_refused_and_the_next_one_outside_works() {
    let (job, _stubs) = job("capturing", [&Config::default(); 2]);
    job.pass();
}

#[test]
fn a_type_that_nccl_has_no_name_for_is_moved_as_the_one_it_is_in_memory() {
    // Every type of Burn's float tensors is one of NCCL's, but for this one, which is f32 on the device.
    let (job, _stubs) = job("flex32", [&Config::default(); 2]);
    job.pass();
}

#[test]
fn data_parallel_training_names_ranks_that_were_told_different_transports() {
    let (job, _stubs) = job("transports_differ", [&Config::default(); 2]);
    let job = job.with_on(0, "BURN_NCCL_DEVICE_TRANSPORT", "host");
    job.with_on(1, "BURN_NCCL_DEVICE_TRANSPORT", "nccl").pass();
}

/// Started by the tests above as ranks.
mod inside {
    use std::time::{Duration, Instant};

    use burn::backend::{Dispatch, DispatchDevice};
    use burn::module::{Module, Param};
    use burn::tensor::{DType, Tensor, TensorData};
    use burn_nccl::devices::{GpuReport, ordinal_of_rank};
    use burn_nccl::{
        AsyncCall, BucketParts, CollectiveBackend, DdpConfig, DeviceError, DistributedDataParallel, Error,
        FlatBucket, ReduceOp, functions,
    };

    use crate::ranks::{Rank, assert_no_faults};

    /// A refusal comes at once, not when a deadline has passed.
    const SOON: Duration = Duration::from_secs(5);

    fn sum(rank: &Rank) -> Result<Tensor<1>, Error> {
        functions::all_reduce(Tensor::<1>::from_data([1.0, 2.0], &rank.device), ReduceOp::Sum, &rank.group)
    }

    fn assert_works(rank: &Rank) {
        let ranks = rank.group.world_size() as f32;
        let found = sum(rank).unwrap().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(found, [ranks, 2.0 * ranks]);
    }

    /// The first collective fails as the device of `culprit` does, soon, and its message says what to do.
    fn expect(rank: Rank, culprit: usize, parts: &[&str]) -> DeviceError {
        let start = Instant::now();
        let error = sum(&rank).map(|_| ()).unwrap_err();
        assert!(start.elapsed() < SOON, "after {:?}: {error}", start.elapsed());
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
        let Error::Device { rank: found, error, .. } = error else { panic!("{text}") };
        assert_eq!(found, culprit, "{text}");
        rank.leave();
        *error
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn no_nccl() {
        let parts = ["rank 1", "/nowhere/libnccl.so.2", "pip install", "BURN_NCCL_LIBRARY"];
        let error = expect(Rank::join(), 1, &parts);
        assert!(matches!(error, DeviceError::LibraryMissing { library, .. } if library == "NCCL"));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn no_driver() {
        let parts = ["rank 1", "/nowhere/libcuda.so.1", "driver", "BURN_NCCL_CUDA_LIBRARY"];
        let error = expect(Rank::join(), 1, &parts);
        assert!(matches!(error, DeviceError::LibraryMissing { .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn no_function() {
        let error = expect(Rank::join(), 1, &["rank 1", "ncclCommInitRankConfig", "install"]);
        assert!(matches!(error, DeviceError::SymbolMissing { .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn too_old() {
        let error = expect(Rank::join(), 1, &["rank 1", "2.16.2", "2.17", "install a newer"]);
        assert!(matches!(error, DeviceError::NcclTooOld { .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn mixed() {
        let parts = ["rank 0 has NCCL 2.27.3", "rank 1 has 2.28.3", "install one version"];
        let error = expect(Rank::join(), 1, &parts);
        assert!(matches!(error, DeviceError::NcclVersionsDiffer { rank: 1, .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn shared() {
        let rank = Rank::join_on(|_| 0);
        let error = expect(rank, 1, &["ranks 0 and 1", "give each rank a GPU of its own"]);
        assert!(matches!(error, DeviceError::SharedGpu { first: 0, second: 1, .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn too_many() {
        // Burn panics on a GPU that is not there, so a program must ask before it makes its first tensor.
        let report = GpuReport::read();
        let rank = Rank::join_on(|_| 0);
        assert_eq!(report.visible(), 1, "{report}");
        let local = (rank.group.local_rank(), rank.group.local_world_size());
        let error = ordinal_of_rank(local.0, local.1, report.visible(), None).unwrap_err();
        assert!(matches!(error, DeviceError::NoSuchGpu { ordinal: 1, visible: 1, .. }), "{error}");
        assert!(error.to_string().contains("at most one rank per GPU"), "{error}");
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn no_memory() {
        let rank = Rank::join();
        assert_works(&rank);
        // 128 MiB in all, of which the parts are few: only the bucket itself does not fit.
        let contents = FlatBucket { ranges: vec![0..100; 1], len: 32 << 20 };
        let part = Tensor::<1>::from_data(TensorData::new(vec![1.0f32; 100], [100]), &rank.device);
        let start = Instant::now();
        let call = AsyncCall::new(&rank.group);
        let parts = BucketParts(vec![part.into_dispatch()]);
        let flat = Dispatch::group_bucket_start(parts, contents, ReduceOp::Sum, call.clone());
        // Where the device itself orders what follows, it is the next call that tells.
        let told = call.wait().and_then(|()| rank.group.barrier()).unwrap_err();
        drop(flat);
        assert!(start.elapsed() < SOON, "after {:?}: {told}", start.elapsed());
        if rank.number() == 1 {
            let Error::Device { error, .. } = &told else { panic!("{told}") };
            assert!(matches!(**error, DeviceError::OutOfMemory { bytes: 0x800_0000, .. }), "{told}");
        }
        for part in ["rank 1", "134217728 bytes", "make the batch or the buckets smaller"] {
            assert!(told.to_string().contains(part), "{part} in {told}");
        }
        drop(rank);
        assert_no_faults();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn no_ordering() {
        let error = expect(Rank::join(), 1, &["rank 1", "host-fence"]);
        assert!(matches!(error, DeviceError::Ordering { .. }));
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn capturing() {
        let rank = Rank::join();
        assert_works(&rank);
        let operand = Tensor::<1>::from_data([1.0, 2.0], &rank.device);
        let DispatchDevice::Cube(device) = rank.device.as_dispatch() else { panic!("it is a GPU") };
        let client = device.client();
        client.graph_prepare().unwrap();
        assert!(client.is_capturing());
        let error = functions::all_reduce(operand, ReduceOp::Sum, &rank.group).unwrap_err();
        let Error::Device { error: refused, .. } = &error else { panic!("{error}") };
        assert!(matches!(**refused, DeviceError::Capturing { .. }), "{error}");
        assert!(error.to_string().contains("end the capture before an all-reduce"), "{error}");
        drop(client.stop_capture());
        assert_works(&rank);
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn flex32() {
        let rank = Rank::join();
        let operand = Tensor::<1>::from_data([1.0f32, 2.0], (&rank.device, DType::Flex32));
        let sum = functions::all_reduce(operand, ReduceOp::Sum, &rank.group).unwrap();
        assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 4.0]);
        rank.leave();
    }

    #[derive(Module, Debug)]
    struct Net {
        weight: Param<Tensor<1>>,
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn transports_differ() {
        let rank = Rank::join();
        let device = rank.device.clone().autodiff();
        let net = Net { weight: Param::from_tensor(Tensor::<1>::from_data([1.0, 2.0], &device)) };
        let start = Instant::now();
        let Err(error) = DistributedDataParallel::new(net, &rank.group, &DdpConfig::new()) else {
            panic!("it was to be refused")
        };
        assert!(start.elapsed() < SOON, "after {:?}: {error}", start.elapsed());
        let Error::Device { error: found, .. } = &error else { panic!("{error}") };
        assert!(matches!(&**found, DeviceError::DevicesDiffer { rank: 1, other: 0, .. }), "{error}");
        assert!(error.to_string().contains("the same BURN_NCCL_DEVICE_TRANSPORT"), "{error}");
        rank.leave();
    }
}
