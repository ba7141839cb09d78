//! How it ends: what users drop and when, and what is left behind.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use stubs::{Injection, Operation, Stubs};

use super::{LIMIT, Plan, Rank, values, wait};
use crate::{
    Deadline, Failure,
    transport::{
        DType, ReduceOp, StreamOrdering,
        nccl::operation::{DeviceOperation, Region},
    },
};

const BOTH: [StreamOrdering; 2] = [StreamOrdering::ContextEvents, StreamOrdering::HostFence];

/// Says when it is dropped.
struct Witness(Arc<AtomicBool>, #[expect(dead_code, reason = "dropped with it")] Box<dyn Any + Send>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn start(
    rank: &Rank,
    len: usize,
) -> (Result<crate::transport::nccl::engine::Flight, Failure>, Arc<AtomicBool>) {
    let block = rank.computed(&values::of(DType::F32, rank.rank, len));
    let operation = DeviceOperation::AllReduce { send: block.region, recv: block.region, op: ReduceOp::Sum };
    let is_dropped = Arc::new(AtomicBool::new(false));
    let keep = Witness(is_dropped.clone(), Box::new(block));
    (rank.start(operation, DType::F32, keep), is_dropped)
}

#[test]
fn a_user_who_drops_everything_at_once_leaves_the_memory_to_the_device_until_it_is_done() {
    for ordering in BOTH {
        for seed in 1..4 {
            let plan = Plan::of(2).ordered(ordering).with(|config| {
                (config.cuda.seed, config.nccl.seed) = (seed, seed);
                (config.cuda.max_delay_us, config.nccl.max_delay_us) = (1000, 1000);
            });
            plan.run(|rank| {
                let dropped: Vec<_> = (0..20)
                    .map(|_| {
                        let (flight, is_dropped) = start(&rank, 100);
                        drop(flight.unwrap());
                        is_dropped
                    })
                    .collect();
                rank.nccl.close();
                assert!(dropped.iter().all(|is_dropped| is_dropped.load(Ordering::SeqCst)));
                assert_eq!(rank.ends.load(Ordering::SeqCst), 20);
                rank.sync();
            });
        }
    }
}

#[test]
fn memory_is_given_back_when_an_operation_has_ended_and_not_later() {
    Plan::of(2).run(|rank| {
        let (flight, is_dropped) = start(&rank, 100);
        flight.unwrap().join().unwrap();
        wait(|| is_dropped.load(Ordering::SeqCst));
    });
}

#[test]
fn memory_is_held_while_an_operation_is_under_way() {
    let plan = Plan::of(2).with(|config| {
        config.nccl.hangs.extend([0, 1].map(|rank| Operation { rank, operation: 1 }));
    });
    let stubs = Stubs::install(&plan.config).unwrap();
    plan.run_on(&stubs, |rank| {
        let rank = rank.unwrap();
        let (flight, is_dropped) = start(&rank, 100);
        drop(flight.unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!is_dropped.load(Ordering::SeqCst), "the device still uses it");
        rank.group.transport().gather("held", &[], Deadline::after(LIMIT)).unwrap();
        if rank.rank == 0 {
            rank.group.abort("enough");
        }
        wait(|| is_dropped.load(Ordering::SeqCst));
    });
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}

#[test]
fn memory_whose_drop_panics_does_not_end_the_thread_that_drops_it() {
    struct Wrong;
    impl Drop for Wrong {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    Plan::of(2).run(|rank| {
        let block = Arc::new(rank.computed(&[1; 8]));
        let operation =
            DeviceOperation::AllReduce { send: block.region, recv: block.region, op: ReduceOp::Sum };
        rank.start(operation, DType::U8, (block, Wrong)).unwrap().join().unwrap();
        rank.reduce().unwrap();
    });
}

#[test]
fn a_start_after_the_close_is_refused_and_lets_the_memory_go() {
    Plan::of(2).run(|rank| {
        rank.reduce().unwrap();
        rank.nccl.close();
        rank.nccl.close();
        let nothing = Region { address: 0, len_bytes: 0 };
        let operation = DeviceOperation::AllReduce { send: nothing, recv: nothing, op: ReduceOp::Sum };
        let is_dropped = Arc::new(AtomicBool::new(false));
        let flight = rank.start(operation, DType::F32, Witness(is_dropped.clone(), Box::new(())));
        assert!(matches!(flight.unwrap_err(), Failure::Aborted { .. }));
        assert!(is_dropped.load(Ordering::SeqCst));
    });
}

#[test]
fn ranks_leave_together_however_late_one_of_them_is() {
    Plan::of(2).run(|rank| {
        rank.reduce().unwrap();
        let start = Instant::now();
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        rank.nccl.close();
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    });
}

#[test]
fn a_communicator_that_cannot_be_finalized_is_aborted_in_time() {
    for function in ["ncclCommFinalize", "ncclCommDestroy"] {
        let plan = Plan::of(2).with(|config| config.nccl.injections.push(Injection::new(function, 0, 3)));
        plan.run(|rank| {
            rank.reduce().unwrap();
            let start = Instant::now();
            rank.nccl.close();
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        });
    }
    let stuck = Injection::new("ncclCommFinalize", 0, 3);
    let plan = Plan::of(2).with(|config| config.nccl.stuck.push(stuck));
    plan.run(|rank| {
        let start = Instant::now();
        rank.nccl.close();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    });
}

#[test]
fn a_communicator_that_has_failed_is_not_finalized() {
    // A finalize would stay in NCCL, and the close would be late.
    let plan = Plan::of(2).with(|config| {
        config.nccl.injections.push(Injection::new("ncclAllReduce", 1, 3));
        config.nccl.stuck.push(Injection::new("ncclCommFinalize", 0, 3));
    });
    plan.run(|rank| {
        rank.reduce().unwrap_err();
        let start = Instant::now();
        rank.nccl.close();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    });
}

#[test]
fn thousands_of_operations_leave_no_events_and_no_memory_behind() {
    for ordering in BOTH {
        let plan = Plan::of(2).ordered(ordering).with(|config| {
            (config.cuda.max_delay_us, config.nccl.max_delay_us) = (0, 0);
            config.cuda.poison = false;
        });
        plan.run(|rank| {
            let block = Arc::new(rank.computed(&[1; 8]));
            let operation =
                DeviceOperation::AllReduce { send: block.region, recv: block.region, op: ReduceOp::Max };
            for round in 0..1000 {
                let flights = [(); 2].map(|()| rank.start(operation.clone(), DType::U8, block.clone()));
                flights.into_iter().for_each(|flight| flight.unwrap().join().unwrap());
                // With context events nothing else keeps the host from running ahead.
                if round % 5 == 0 {
                    rank.sync();
                }
            }
            let shared = rank.nccl.shared.clone();
            rank.nccl.close();
            assert_eq!(rank.ends.load(Ordering::SeqCst), 2000);
            assert_eq!(Arc::strong_count(&block), 1, "the caller's own");
            let free = shared.events.free();
            assert!(free <= 100, "{free} events for 2,000 operations, some ten at a time");
            drop(rank);
            assert_eq!(Arc::strong_count(&shared), 1, "no thread is left");
        });
    }
}
