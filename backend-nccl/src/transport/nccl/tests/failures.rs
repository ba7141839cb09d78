//! What goes wrong in the midst of it: one failure on all ranks, in time, and nothing that waits for ever.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use stubs::{AsyncError, Injection, Operation, Stubs};

use super::{Block, Plan, Rank, values};
use crate::{
    Failure,
    transport::{
        DType, ReduceOp, StreamOrdering,
        nccl::operation::{DeviceOperation, Region},
    },
};

/// Well above what a failure takes, and below any deadline that could be its reason.
const SOON: Duration = Duration::from_secs(8);

/// Reduces until that fails, which it does on every rank in the same way.
fn failure(plan: &Plan, act: impl Fn(&Rank) -> Result<(), Failure> + Sync) -> Failure {
    let stubs = Stubs::install(&plan.config).unwrap();
    let mut failures = plan.run_on(&stubs, |rank| {
        let (rank, start) = (rank.unwrap(), Instant::now());
        let found = loop {
            if let Err(failure) = act(&rank) {
                break failure;
            }
            assert!(start.elapsed() < SOON, "it never fails");
        };
        assert!(start.elapsed() < SOON, "{found} after {:?}", start.elapsed());
        let again = Instant::now();
        assert_eq!(rank.reduce().unwrap_err(), found, "a later call");
        assert!(again.elapsed() < Duration::from_secs(1), "a later call does not wait");
        found
    });
    assert!(failures.iter().all(|failure| *failure == failures[0]), "{failures:?}");
    failures.remove(0)
}

fn reduce(rank: &Rank) -> Result<(), Failure> {
    rank.reduce().map(drop)
}

fn to_all(rank: &Rank) -> Result<(), Failure> {
    let (send, recv) = (rank.computed(&[1; 8]), rank.memory(8));
    let operation = DeviceOperation::AllToAll { send: send.region, recv: recv.region };
    rank.start(operation, DType::U8, (send, recv))?.join()
}

#[test]
fn every_code_of_nccl_and_those_that_nobody_knows_end_the_group_with_the_code() {
    for (ordering, codes) in [
        (StreamOrdering::ContextEvents, &[1, 2, 3, 4, 5, 6, 8, 9, 99, -7][..]),
        (StreamOrdering::HostFence, &[1, 6, 99]),
    ] {
        for code in codes {
            let injection = Injection::new("ncclAllReduce", 3, *code).of(1);
            let plan = Plan::of(2).ordered(ordering).with(|config| config.nccl.injections.push(injection));
            match failure(&plan, reduce) {
                Failure::Nccl { rank: 1, code: found, action, text } => {
                    assert_eq!((found, &*action), (*code, "reduce (ncclAllReduce)"), "{text}");
                }
                other => panic!("{code}: {other}"),
            }
        }
    }
}

#[test]
fn every_function_of_nccl_that_can_refuse_ends_the_group() {
    type Act = fn(&Rank) -> Result<(), Failure>;
    let cases: [(&str, Act); 5] = [
        ("ncclSend", to_all),
        ("ncclRecv", to_all),
        ("ncclGroupEnd", to_all),
        ("ncclGroupStart", to_all),
        ("ncclCommGetAsyncError", reduce),
    ];
    for (function, act) in cases {
        let who = if function.starts_with("ncclGroup") { None } else { Some(1) };
        // The first polls belong to the making of the communicator.
        let call = if function == "ncclCommGetAsyncError" { 40 } else { 2 };
        let injection = Injection { function: function.into(), call, code: 3, who };
        let plan = Plan::of(2).with(|config| config.nccl.injections.push(injection));
        match failure(&plan, act) {
            Failure::Nccl { code: 3, action, .. } => assert!(action.contains(function), "{action}"),
            other => panic!("{function}: {other}"),
        }
    }
}

#[test]
fn every_function_of_the_driver_that_can_refuse_ends_the_group() {
    for function in [
        "cuStreamWaitEvent",
        "cuEventRecord",
        "cuEventQuery",
        "cuCtxRecordEvent",
        "cuCtxWaitEvent",
        "cuMemsetD8Async",
    ] {
        let plan = Plan::of(2).ordered(StreamOrdering::ContextEvents);
        let stubs = Stubs::install(&plan.config).unwrap();
        let failures = plan.run_on(&stubs, |rank| {
            let rank = rank.unwrap();
            rank.reduce().unwrap();
            let block = rank.memory(16);
            // Both ranks have done what they need of the driver for themselves.
            rank.group.transport().gather("ready", &[], crate::Deadline::after(SOON)).unwrap();
            if rank.rank == 0 {
                let mut config = plan.config.clone();
                config.cuda.injections.push(Injection::new(function, 0, 719).of(1));
                stubs.configure(&config).unwrap();
            }
            rank.group.transport().gather("told", &[], crate::Deadline::after(SOON)).unwrap();
            let region = block.region;
            let operation = match function == "cuMemsetD8Async" {
                true => DeviceOperation::Bucket { parts: vec![], bucket: region, op: ReduceOp::Sum },
                false => DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum },
            };
            let start = Instant::now();
            let failure = loop {
                let block = Arc::new(block.region);
                match rank.start(operation.clone(), DType::U8, block).and_then(|flight| flight.join()) {
                    Err(failure) => break failure,
                    Ok(()) => assert!(start.elapsed() < SOON, "{function} never fails"),
                }
            };
            // The memory is given back when the communicator has ended, whose stream may use it until then.
            rank.nccl.close();
            stubs.configure(&plan.config).unwrap();
            failure
        });
        for failure in failures {
            match failure {
                Failure::Cuda { rank: 1, code: 719, action, .. } => {
                    assert!(action.contains(function), "{action}");
                }
                other => panic!("{function}: {other}"),
            }
        }
    }
}

#[test]
fn an_error_that_nccl_finds_by_itself_ends_the_group() {
    for code in [3, 6, 77] {
        let error = AsyncError { rank: 1, after: 2, code };
        match failure(&Plan::of(2).with(|config| config.nccl.async_errors.push(error)), reduce) {
            Failure::Nccl { rank: 1, code: found, .. } => assert_eq!(found, code),
            other => panic!("{other}"),
        }
    }
}

/// Starts reductions of which one hangs, and waits for their end.
fn until_the_end(rank: &Rank) -> Failure {
    let block = Arc::new(rank.computed(&values::of(DType::F32, rank.rank, 4)));
    let operation = DeviceOperation::AllReduce { send: block.region, recv: block.region, op: ReduceOp::Sum };
    loop {
        let flight = rank.start(operation.clone(), DType::F32, block.clone());
        if let Err(failure) = flight.and_then(|flight| flight.join()) {
            rank.nccl.close();
            rank.sync();
            return failure;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_operation_that_hangs_ends_at_its_deadline_on_all_ranks_alike() {
    for ordering in [StreamOrdering::ContextEvents, StreamOrdering::HostFence] {
        let plan = Plan::of(3).ordered(ordering).within(Duration::from_secs(1));
        let plan = plan.with(|config| {
            config.nccl.hangs.extend((0..3).map(|rank| Operation { rank, operation: 2 }));
        });
        let stubs = Stubs::install(&plan.config).unwrap();
        let failures = plan.run_on(&stubs, |rank| {
            let (rank, start) = (rank.unwrap(), Instant::now());
            let failure = until_the_end(&rank);
            assert!((Duration::from_millis(900)..SOON).contains(&start.elapsed()), "{:?}", start.elapsed());
            failure
        });
        assert!(failures.iter().all(|failure| *failure == failures[0]), "{failures:?}");
        match &failures[0] {
            Failure::Stalled { operation, limit } => {
                assert_eq!((&**operation, limit.as_secs()), ("all_reduce of 4 elements of f32", 1));
            }
            other => panic!("{other}"),
        }
        assert_eq!(stubs.faults().unwrap(), [""; 0]);
    }
}

#[test]
fn a_call_of_nccl_that_does_not_return_is_ended_by_the_watchdog() {
    let stuck = Injection::new("ncclAllReduce", 0, 6).of(1);
    let plan = Plan::of(2).within(Duration::from_secs(1)).with(|config| config.nccl.stuck.push(stuck));
    let stubs = Stubs::install(&plan.config).unwrap();
    let failures = plan.run_on(&stubs, |rank| {
        let (rank, start) = (rank.unwrap(), Instant::now());
        let failure = until_the_end(&rank);
        assert!(start.elapsed() < SOON, "{failure} after {:?}", start.elapsed());
        failure
    });
    assert_eq!(failures[0], failures[1]);
    assert!(matches!(failures[0], Failure::Stalled { .. }), "{}", failures[0]);
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}

#[test]
fn a_computation_that_never_ends_is_given_up_at_the_deadline() {
    let plan = Plan::of(2).ordered(StreamOrdering::HostFence).within(Duration::from_secs(1));
    let stubs = Stubs::install(&plan.config).unwrap();
    let failures = plan.run_on(&stubs, |rank| {
        let rank = rank.unwrap();
        let block = rank.computed(&[1; 8]);
        let (region, start) = (block.region, Instant::now());
        let operation = DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum };
        let (over, end) = std::sync::mpsc::channel::<()>();
        let fence = rank.fence();
        let is_first = rank.rank == 0;
        let call = rank.call(operation, DType::U8, block);
        let flight = rank.nccl.start(call, || match is_first {
            true => Box::new(move || end.recv().map_err(|_| "over".to_owned())),
            false => fence,
        });
        let failure = flight.unwrap().join().unwrap_err();
        assert!(start.elapsed() < SOON, "{failure} after {:?}", start.elapsed());
        drop(over);
        failure
    });
    assert_eq!(failures[0], failures[1]);
    assert!(matches!(failures[0], Failure::Stalled { .. }), "{}", failures[0]);
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}

#[test]
fn a_computation_that_has_failed_ends_the_group_with_its_reason() {
    let failures = Plan::of(2).ordered(StreamOrdering::HostFence).run(|rank| {
        if rank.rank == 1 {
            return rank.reduce().unwrap_err();
        }
        let nothing = Region { address: 0, len_bytes: 0 };
        let operation = DeviceOperation::AllReduce { send: nothing, recv: nothing, op: ReduceOp::Sum };
        let call = rank.call(operation, DType::U8, ());
        let flight = rank.nccl.start(call, || Box::new(|| Err("out of memory".into())));
        flight.unwrap().join().unwrap_err()
    });
    assert_eq!(failures[0], failures[1]);
    match &failures[0] {
        Failure::System { rank: 0, detail, .. } => assert_eq!(detail, "out of memory"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_that_does_not_come_is_told_by_the_ones_that_wait() {
    let plan = Plan::of(2).within(Duration::from_secs(1));
    let failures = plan.run(|rank| {
        let start = Instant::now();
        let failure = match rank.rank {
            0 => rank.reduce().unwrap_err(),
            _ => loop {
                if let Some(failure) = rank.group.transport().obstacle() {
                    break failure;
                }
                std::thread::sleep(Duration::from_millis(5));
            },
        };
        assert!(start.elapsed() < SOON, "{failure} after {:?}", start.elapsed());
        failure
    });
    assert_eq!(failures[0], failures[1]);
    assert!(matches!(failures[0], Failure::Stalled { .. } | Failure::Deadline { .. }), "{}", failures[0]);
}

#[test]
fn a_rank_that_leaves_is_named_a_moment_after_it_has_gone() {
    let plan = Plan::of(2);
    let stubs = Stubs::install(&plan.config).unwrap();
    let failures = plan.run_on(&stubs, |rank| {
        let rank = rank.unwrap();
        rank.reduce().unwrap();
        if rank.rank == 1 {
            // Without the goodbye of its communicator, as a program that forgets it.
            rank.group.transport().close();
            std::thread::sleep(Duration::from_secs(4));
            return None;
        }
        let start = Instant::now();
        let failure = rank.reduce().unwrap_err();
        let waited = start.elapsed();
        assert!((Duration::from_millis(500)..Duration::from_secs(3)).contains(&waited), "{waited:?}");
        Some(failure)
    });
    assert_eq!(failures[0], Some(Failure::PeerLeft { rank: 1 }));
}

#[test]
fn a_group_that_is_ended_by_its_program_ends_what_is_under_way() {
    let plan = Plan::of(2).with(|config| config.nccl.hangs.push(Operation { rank: 0, operation: 1 }));
    let stubs = Stubs::install(&plan.config).unwrap();
    let failures = plan.run_on(&stubs, |rank| {
        let rank = rank.unwrap();
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(100));
            rank.group.abort("enough");
        }
        until_the_end(&rank)
    });
    let expected = Failure::Aborted { rank: 1, reason: "enough".into() };
    assert_eq!(failures, [expected.clone(), expected]);
}

#[test]
fn a_group_that_has_ended_while_nothing_was_under_way_takes_no_operation() {
    let failures = Plan::of(2).run(|rank| {
        rank.reduce().unwrap();
        // Both have ended theirs before one of them ends the group.
        rank.group.transport().gather("reduced", &[], crate::Deadline::after(SOON)).unwrap();
        if rank.rank == 1 {
            rank.group.abort("enough");
        }
        super::wait(|| rank.group.transport().obstacle().is_some());
        let nothing = Region { address: 0, len_bytes: 0 };
        let operation = DeviceOperation::AllReduce { send: nothing, recv: nothing, op: ReduceOp::Sum };
        rank.start(operation, DType::U8, ()).map(drop).unwrap_err()
    });
    let expected = Failure::Aborted { rank: 1, reason: "enough".into() };
    assert_eq!(failures, [expected.clone(), expected]);
}

#[test]
fn a_failure_keeps_the_memory_until_the_stream_has_ended() {
    // Freed memory is poisoned, and its use is a fault that `run` finds.
    for seed in 1..6 {
        let injection = Injection::new("ncclAllReduce", 4, 3).of(1);
        let plan = Plan::of(2).with(|config| {
            config.nccl.injections.push(injection);
            (config.cuda.seed, config.cuda.max_delay_us) = (seed, 1000);
        });
        plan.run(|rank| {
            let blocks: Vec<[Block; 3]> = (0..8)
                .map(|_| [rank.computed(&[1; 64]), rank.computed(&[2; 64]), rank.memory(256)])
                .collect();
            rank.sync();
            // Copies that are still to come when the reduction after them is refused.
            let flights: Vec<_> = blocks
                .into_iter()
                .map(|[first, second, bucket]| {
                    let parts = vec![(first.region, 0), (second.region, 128)];
                    let bucket = (bucket.region, bucket);
                    let operation = DeviceOperation::Bucket { parts, bucket: bucket.0, op: ReduceOp::Sum };
                    rank.start(operation, DType::U8, (first, second, bucket))
                })
                .collect();
            super::wait(|| rank.nccl.shared.progress.failure().is_some());
            drop(flights);
            rank.nccl.close();
            rank.sync();
        });
    }
}
