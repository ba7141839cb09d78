//! The same seen from a group: what a rank is told when another does something else.

use std::time::{Duration, Instant};

use stubs::Stubs;

use super::{Plan, libraries, wait};
use crate::{
    DeviceError, Error, Failure, GroupOptions, ProcessGroup, Result,
    group::{DeviceRoute, DeviceWork, Planned},
    rendezvous::{Environment, Secret},
    transport::{
        DType, DeviceTransport, ReduceOp, StreamOrdering,
        nccl::{DeviceOperation, Fence, Nccl, Region},
    },
};

/// Well above what a failure takes, and below any deadline that could be its reason.
const SOON: Duration = Duration::from_secs(8);

/// Without the host's comparison, so that a rank that does not come is missing on the GPU.
fn options(ordering: StreamOrdering, timeout: Duration) -> GroupOptions {
    GroupOptions::default().with_stream_ordering(ordering).with_timeout(timeout).with_check(false)
}

/// The ranks of a group, each on a thread, with the doubles for their GPUs.
fn run<R: Send>(
    plan: &Plan,
    options: GroupOptions,
    body: impl Fn(ProcessGroup, &Stubs) -> R + Sync,
) -> Vec<R> {
    run_on(ProcessGroup::local(plan.world_size, options).unwrap(), plan, body)
}

fn run_on<R: Send>(
    groups: Vec<ProcessGroup>,
    plan: &Plan,
    body: impl Fn(ProcessGroup, &Stubs) -> R + Sync,
) -> Vec<R> {
    let stubs = Stubs::install(&plan.config).unwrap();
    let (body, of_all) = (&body, &stubs);
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || body(group, of_all))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
    results
}

fn route(group: &ProcessGroup, stubs: &Stubs) -> Result<DeviceRoute> {
    group.device_route_by(group.rank(), || libraries(stubs))
}

fn nccl(group: &ProcessGroup, stubs: &Stubs) -> std::sync::Arc<Nccl> {
    match route(group, stubs).unwrap() {
        DeviceRoute::Nccl(nccl) => nccl,
        other => panic!("{other:?}"),
    }
}

/// Starts a reduction of some bytes that nobody reads.
fn reduce(group: &ProcessGroup, nccl: &Nccl, fence: impl FnOnce() -> Fence) -> Result<DeviceWork> {
    let gpu = nccl.shared.gpu.clone();
    // This thread has no context of its own, as that of a program that computes on another.
    let memory = gpu.enter().and_then(|_entered| super::Memory::new(&gpu, 64, "a test")).unwrap();
    let region = Region { address: memory.address, len_bytes: 64 };
    let operation = DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum };
    group.start_on_device(nccl, Planned { operation, dtype: DType::U8, keep: Box::new(memory) }, fence)
}

fn at_once() -> Fence {
    Box::new(|| Ok(()))
}

fn cause(error: Error) -> Failure {
    match error {
        Error::Collective { failure, .. } => *failure,
        Error::SetUp { failure, .. } => failure,
        other => panic!("{other}"),
    }
}

/// The failure of a group, once it has one.
fn end_of(group: &ProcessGroup) -> Failure {
    wait(|| group.transport().obstacle().is_some());
    group.transport().obstacle().unwrap()
}

fn is_missing(failure: &Failure, rank: usize) -> bool {
    matches!(failure, Failure::Deadline { missing, .. } if *missing == [rank])
}

#[test]
fn of_several_operations_in_flight_the_first_tells_which_rank_is_missing() {
    let options = options(StreamOrdering::ContextEvents, Duration::from_secs(1));
    // How many operations the missing rank takes part in.
    for come in [0, 1] {
        let failures = run(&Plan::of(3), options.clone(), |group, stubs| {
            let (nccl, start) = (nccl(&group, stubs), Instant::now());
            let count = if group.rank() == 1 { come } else { come + 2 };
            for _ in 0..count {
                reduce(&group, &nccl, at_once).unwrap().wait().unwrap();
            }
            let failure = end_of(&group);
            assert!(start.elapsed() < SOON, "{failure} after {:?}", start.elapsed());
            failure
        });
        assert!(failures.iter().all(|failure| is_missing(failure, 1)), "{failures:?}");
    }
}

#[test]
fn a_rank_is_missing_in_an_operation_that_the_gpu_does_not_have_yet() {
    let options = options(StreamOrdering::HostFence, Duration::from_secs(1));
    let failures = run(&Plan::of(2), options, |group, stubs| {
        let nccl = nccl(&group, stubs);
        let (over, end) = std::sync::mpsc::channel::<()>();
        if group.rank() == 0 {
            let fence = move || -> Fence { Box::new(move || end.recv().map_err(|_| "over".into())) };
            let first = reduce(&group, &nccl, fence).unwrap();
            let second = reduce(&group, &nccl, at_once).unwrap();
            let failures = [first, second].map(|work| cause(work.wait().unwrap_err()));
            assert_eq!(failures[0], failures[1]);
        }
        let failure = end_of(&group);
        drop(over);
        failure
    });
    assert!(failures.iter().all(|failure| is_missing(failure, 1)), "{failures:?}");
}

#[test]
fn a_rank_that_drops_its_group_while_another_waits_for_it_has_left() {
    for ordering in [StreamOrdering::HostFence, StreamOrdering::ContextEvents] {
        let failures = run(&Plan::of(2), options(ordering, super::LIMIT), |group, stubs| {
            let nccl = nccl(&group, stubs);
            reduce(&group, &nccl, at_once).unwrap().wait().unwrap();
            let start = Instant::now();
            if group.rank() == 1 {
                drop((group, nccl));
                assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
                return None;
            }
            let work = reduce(&group, &nccl, at_once).unwrap();
            let failure = match ordering {
                StreamOrdering::HostFence => cause(work.wait().unwrap_err()),
                _ => work.wait().map(|()| end_of(&group)).unwrap(),
            };
            let waited = start.elapsed();
            assert!((Duration::from_millis(500)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
            Some(failure)
        });
        assert_eq!(failures[0], Some(Failure::PeerLeft { rank: 1 }));
    }
}

#[test]
fn a_rank_that_leaves_early_and_has_done_its_part_is_waited_for() {
    let options = options(StreamOrdering::HostFence, super::LIMIT);
    run(&Plan::of(2), options, |group, stubs| {
        let nccl = nccl(&group, stubs);
        reduce(&group, &nccl, at_once).unwrap().wait().unwrap();
        if group.rank() == 0 {
            // Longer than the grace for a rank that has left.
            std::thread::sleep(Duration::from_secs(2));
            group.check_health().unwrap();
        }
    });
}

#[test]
fn a_rank_that_panics_between_collectives_ends_the_wait_of_the_others_at_once() {
    let options = options(StreamOrdering::HostFence, super::LIMIT);
    let failures = run(&Plan::of(2), options, |group, stubs| {
        let nccl = nccl(&group, stubs);
        reduce(&group, &nccl, at_once).unwrap().wait().unwrap();
        let start = Instant::now();
        if group.rank() == 1 {
            let rank = std::panic::AssertUnwindSafe((group, nccl));
            let panicked = std::panic::catch_unwind(move || {
                let _rank = rank;
                panic!("on purpose");
            });
            assert!(panicked.is_err());
            return None;
        }
        let failure = cause(reduce(&group, &nccl, at_once).unwrap().wait().unwrap_err());
        assert!(start.elapsed() < Duration::from_millis(900), "{failure} after {:?}", start.elapsed());
        Some(failure)
    });
    let reason = "it panicked, read its log for the message".into();
    assert_eq!(failures[0], Some(Failure::Aborted { rank: 1, reason }));
}

#[test]
fn ranks_that_are_told_to_go_different_ways_are_told_so_on_all() {
    let secret = Secret::from_hex("00112233445566778899aabbccddeeff").unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let wishes = [DeviceTransport::Auto, DeviceTransport::Nccl, DeviceTransport::Host];
    let groups: Vec<_> = std::thread::scope(|scope| {
        let ranks = wishes.iter().enumerate().map(|(rank, wish)| {
            let options = options(StreamOrdering::Auto, super::LIMIT).with_device_transport(*wish);
            let environment = Environment::in_this_process(rank, 3, port, secret);
            scope.spawn(move || ProcessGroup::connect(&environment, options).unwrap())
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let errors = run_on(groups, &Plan::of(3), |group, stubs| {
        let errors = [route(&group, stubs).unwrap_err(), route(&group, stubs).unwrap_err()];
        // It has not cost the group.
        group.barrier().unwrap();
        errors
    });
    for error in errors.iter().flatten() {
        let Error::Device { rank: 2, error, .. } = error else { panic!("{error}") };
        let DeviceError::DevicesDiffer { rank: 0, other: 2, found } = &**error else { panic!("{error}") };
        assert!(found.contains("BURN_NCCL_DEVICE_TRANSPORT=host"), "{found}");
    }
}

#[test]
fn what_carries_the_tensors_can_be_asked_while_a_communicator_is_made() {
    let plan = Plan::of(2).with(|config| config.nccl.init_hangs.extend([0, 1]));
    let options = options(StreamOrdering::Auto, super::LIMIT).with_connect_timeout(Duration::from_secs(2));
    run(&plan, options, |group, stubs| {
        std::thread::scope(|scope| {
            let making = scope.spawn(|| route(&group, stubs));
            wait(|| group.has_begun_devices());
            let start = Instant::now();
            assert_eq!(group.device_transport_report(), None);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            assert!(making.join().unwrap().is_err());
        });
    });
}
