//! What is wrong before anything is computed: the same typed error on every rank, in time.

use std::time::{Duration, Instant};

use stubs::{Config, Injection, Stubs};

use super::{Plan, Settings};
use crate::{
    DeviceError, Error, Failure,
    transport::nccl::{Libraries, api::Api},
};

/// The error that every rank reports of rank `of`.
fn refused(plan: &Plan, of: usize, change: impl Fn(usize, Settings) -> Settings + Sync) -> DeviceError {
    let stubs = Stubs::install(&plan.config).unwrap();
    let errors = errors(plan, |_| &stubs, change);
    told_by_all(errors, of)
}

fn errors<'a>(
    plan: &Plan,
    stubs: impl Fn(usize) -> &'a Stubs + Sync,
    change: impl Fn(usize, Settings) -> Settings + Sync,
) -> Vec<Error> {
    plan.run_each(stubs, change, |rank| rank.map(|_| ()).unwrap_err())
}

fn told_by_all(errors: Vec<Error>, of: usize) -> DeviceError {
    let mut told: Vec<DeviceError> = errors
        .into_iter()
        .map(|error| match error {
            Error::Device { rank, error, .. } if rank == of => *error,
            other => panic!("{other}"),
        })
        .collect();
    assert!(told.iter().all(|error| *error == told[0]), "{told:?}");
    told.remove(0)
}

/// The failure that every rank reports.
fn failed(errors: Vec<Error>) -> Failure {
    let mut failures: Vec<Failure> = errors
        .into_iter()
        .map(|error| match error {
            Error::SetUp { failure, .. } => failure,
            other => panic!("{other}"),
        })
        .collect();
    assert!(failures.iter().all(|failure| *failure == failures[0]), "{failures:?}");
    failures.remove(0)
}

fn same(_: usize, settings: Settings) -> Settings {
    settings
}

fn on_rank_1(change: impl Fn(&mut Libraries) + Sync) -> impl Fn(usize, Settings) -> Settings + Sync {
    move |rank, mut settings| {
        if rank == 1 {
            change(&mut settings.libraries);
        }
        settings
    }
}

#[test]
fn a_library_that_is_missing_on_one_rank_is_told_on_all_with_what_was_tried_and_what_to_do() {
    let missing = |libraries: &mut Libraries| libraries.nccl = Some("/nowhere/libnccl.so.2".into());
    let error = refused(&Plan::of(3), 1, on_rank_1(missing)).to_string();
    for part in [
        "cannot load NCCL",
        "/nowhere/libnccl.so.2",
        "pip install nvidia-nccl-cu12",
        "BURN_NCCL_LIBRARY",
        "=host",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let missing = |libraries: &mut Libraries| libraries.driver = Some("/nowhere/libcuda.so.1".into());
    let error = refused(&Plan::of(2), 1, on_rank_1(missing)).to_string();
    for part in ["cannot load the CUDA driver", "/nowhere/libcuda.so.1", "nvidia-smi"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_function_that_is_missing_is_named_with_the_file() {
    for (function, change) in [
        (
            "ncclCommFinalize",
            &(|config: &mut Config| config.nccl.missing.push("ncclCommFinalize".into()))
                as &dyn Fn(&mut Config),
        ),
        ("cuStreamQuery", &|config| config.cuda.missing.push("cuStreamQuery".into())),
    ] {
        let plan = Plan::of(2).with(change);
        match refused(&plan, 0, same) {
            DeviceError::SymbolMissing { symbol, path, .. } => {
                assert_eq!(symbol, function);
                assert!(path.contains("burn-nccl-stubs-"), "{path}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_library_without_the_functions_that_only_newer_ones_have_does() {
    let plan = Plan::of(2).with(|config| {
        config.nccl.missing.push("ncclGetLastError".into());
        config.cuda.missing.extend(["cuCtxRecordEvent".into(), "cuCtxWaitEvent".into()]);
        config.nccl.version = 21701;
    });
    plan.run(|rank| {
        assert_eq!(rank.nccl.version(), "2.17.1");
        rank.reduce().unwrap();
    });
}

#[test]
fn a_variable_that_makes_calls_wait_is_refused_with_the_remedy() {
    let change = |rank, mut settings: Settings| {
        settings.variables.blocks = rank == 1;
        settings
    };
    match refused(&Plan::of(2), 1, change) {
        error @ DeviceError::Variable { .. } => {
            let text = error.to_string();
            assert!(text.starts_with("NCCL_COMM_BLOCKING=1 ") && text.ends_with("; unset it"), "{text}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn the_place_of_the_handle_lasts_while_an_old_nccl_makes_the_communicator() {
    let plan = Plan::of(3).with(|config| {
        config.nccl.version = 21701;
        config.nccl.in_progress_polls = 3;
    });
    plan.run(|rank| rank.reduce().unwrap());
}

#[test]
fn an_nccl_that_is_too_old_says_so_and_not_which_functions_it_lacks() {
    let plan = Plan::of(2).with(|config| {
        config.nccl.version = 21602;
        config.nccl.missing.push("ncclCommInitRankConfig".into());
    });
    match refused(&plan, 0, same) {
        DeviceError::NcclTooOld { found, oldest, .. } => assert_eq!((&*found, &*oldest), ("2.16.2", "2.17")),
        other => panic!("{other}"),
    }
}

#[test]
fn an_nccl_that_is_newer_than_any_known_one_is_used() {
    Plan::of(2).with(|config| config.nccl.version = 23512).run(|rank| {
        assert_eq!(rank.nccl.version(), "2.35.12");
        rank.reduce().unwrap();
    });
}

#[test]
fn mixed_versions_are_named_with_the_rank_before_nccl_sees_them() {
    let plan = Plan::of(3);
    let stubs = [22703, 22703, 22907].map(|version| {
        Stubs::install(&Plan::of(3).with(|config| config.nccl.version = version).config).unwrap()
    });
    let errors = errors(&plan, |rank| &stubs[rank], same);
    let (first, other) = ("2.27.3".into(), "2.29.7".into());
    assert_eq!(told_by_all(errors, 2), DeviceError::NcclVersionsDiffer { rank: 2, first, other });
}

#[test]
fn two_ranks_on_one_gpu_are_named_before_nccl_sees_them() {
    let plan = Plan { ordinals: vec![0, 1, 0], ..Plan::of(3) };
    match refused(&plan, 2, same) {
        DeviceError::SharedGpu { first: 0, second: 2, pci_bus_id, .. } => {
            assert_eq!(pci_bus_id, "0000:10:00.0")
        }
        other => panic!("{other}"),
    }
}

#[test]
fn more_ranks_than_gpus_is_a_gpu_that_is_not_there() {
    let plan = Plan::of(2).with(|config| config.cuda.devices.truncate(1));
    match refused(&plan, 1, same) {
        DeviceError::NoSuchGpu { ordinal: 1, visible: 1, .. } => {}
        other => panic!("{other}"),
    }
    let plan = Plan::of(2).with(|config| config.cuda.devices.clear());
    match refused(&plan, 0, same) {
        DeviceError::NoSuchGpu { ordinal: 0, visible: 0, .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_driver_that_is_too_old_for_nccl_is_told_with_both_versions_of_cuda() {
    let plan = Plan::of(2).with(|config| config.cuda.driver_version = 12080);
    let stubs = Stubs::install(&plan.config).unwrap();
    let mut library = std::fs::read(stubs.nccl_path()).unwrap();
    let at = library.windows(9).position(|window| window == b"+cuda12.9").unwrap();
    library[at..at + 9].copy_from_slice(b"+cuda13.0");
    std::fs::write(stubs.nccl_path(), library).unwrap();
    match told_by_all(errors(&plan, |_| &stubs, same), 0) {
        DeviceError::DriverTooOld { driver, needed, .. } => {
            assert_eq!((&*driver, &*needed), ("12.8", "13.0"))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_nccl_was_built_for_is_read_from_its_file() {
    let stubs = Stubs::install(&Config::default()).unwrap();
    let api = Api::load(&super::libraries(&stubs)).unwrap();
    assert_eq!(api.built_for().map(|cuda| cuda.to_string()).as_deref(), Some("12.9"));
}

#[test]
fn a_refusal_of_the_driver_keeps_its_code_and_name() {
    for (function, code) in [("cuDevicePrimaryCtxRetain", 2), ("cuInit", 999), ("cuDeviceGetPCIBusId", 12345)]
    {
        let plan = Plan::of(2).with(|config| config.cuda.injections.push(Injection::new(function, 0, code)));
        match refused(&plan, 0, same) {
            DeviceError::Driver { action, code: found, name } => {
                assert_eq!((&*action, found), (function, code), "{name}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_id_that_cannot_be_made_is_rank_0s_error() {
    let plan =
        Plan::of(2).with(|config| config.nccl.injections.push(Injection::new("ncclGetUniqueId", 0, 2)));
    match refused(&plan, 0, same) {
        DeviceError::Nccl { action, code: 2, text } => {
            assert_eq!(action, "ncclGetUniqueId");
            assert!(text.contains("ncclSystemError"), "{text}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_communicator_that_is_refused_on_all_ranks_is_the_same_error_on_all() {
    for code in [1, 3, 8, 99] {
        let injection = Injection::new("ncclCommInitRankConfig", 0, code);
        let plan = Plan::of(2).with(|config| config.nccl.injections.push(injection));
        match refused(&plan, 0, same) {
            DeviceError::Nccl { code: found, .. } => assert_eq!(found, code),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_communicator_that_is_refused_on_one_rank_ends_the_wait_of_the_others() {
    let injection = Injection::new("ncclCommInitRankConfig", 0, 5).of(1);
    let plan = Plan::of(3).with(|config| config.nccl.injections.push(injection));
    let (stubs, start) = (Stubs::install(&plan.config).unwrap(), Instant::now());
    match failed(errors(&plan, |_| &stubs, same)) {
        Failure::Nccl { rank: 1, code: 5, .. } => {}
        other => panic!("{other}"),
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_communicator_that_is_never_made_ends_at_the_deadline_on_all_ranks() {
    let plan = Plan::of(2).with(|config| config.nccl.init_hangs.push(1));
    let plan = Plan { connect: Duration::from_secs(2), ..plan };
    let (stubs, start) = (Stubs::install(&plan.config).unwrap(), Instant::now());
    match failed(errors(&plan, |_| &stubs, same)) {
        Failure::Stalled { operation, .. } => assert_eq!(operation, "the set-up of a communicator"),
        other => panic!("{other}"),
    }
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

#[test]
fn a_set_up_that_failed_can_be_tried_again() {
    use super::Rank;
    let plan = Plan::of(2);
    let stubs = Stubs::install(&plan.config).unwrap();
    let groups = plan.groups();
    std::thread::scope(|scope| {
        for (rank, group) in groups.into_iter().enumerate() {
            let (plan, stubs) = (&plan, &stubs);
            scope.spawn(move || {
                let wrong = Settings { ordinal: 0, ..plan.settings(stubs, rank) };
                assert!(Rank::connect(group.clone(), wrong, super::LIMIT).is_err());
                let right = Settings { number: 2, ..plan.settings(stubs, rank) };
                Rank::connect(group, right, super::LIMIT).unwrap().reduce().unwrap();
            });
        }
    });
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}
