//! Who waits for whom: what the choice of an ordering depends on, and that both keep computation and collectives apart.

use std::sync::Arc;

use stubs::{Config, Injection, Stubs};

use super::{Plan, Rank, values};
use crate::{
    DeviceError, Error,
    transport::{DType, ReduceOp, StreamOrdering, nccl::operation::DeviceOperation},
};

fn chosen(plan: &Plan) -> Vec<StreamOrdering> {
    plan.run(|rank| rank.nccl.ordering())
}

fn without(function: &str) -> impl FnOnce(&mut Config) {
    let function = function.to_owned();
    move |config| config.cuda.missing.push(function)
}

fn refused(wish: StreamOrdering, change: impl FnOnce(&mut Config)) -> Vec<String> {
    let plan = Plan::of(2).ordered(wish).with(change);
    let stubs = Stubs::install(&plan.config).unwrap();
    plan.run_on(&stubs, |rank| match rank.map(|_| ()).unwrap_err() {
        Error::Device { rank: 0, error, .. } => match *error {
            DeviceError::Ordering { reason } => reason,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    })
}

#[test]
fn context_events_are_taken_where_the_driver_has_them_and_they_order() {
    assert_eq!(chosen(&Plan::of(2)), [StreamOrdering::ContextEvents; 2]);
}

#[test]
fn the_host_orders_where_context_events_are_missing_or_do_nothing() {
    for plan in [
        Plan::of(2).with(without("cuCtxRecordEvent")),
        Plan::of(2).with(without("cuCtxWaitEvent")),
        Plan::of(2).with(|config| config.cuda.driver_version = 12040),
        Plan::of(2).with(|config| config.cuda.context_events_are_empty = true),
        Plan::of(2).with(|config| config.cuda.injections.push(Injection::new("cuCtxRecordEvent", 0, 801))),
        // Too little memory for the test of them.
        Plan::of(2).with(|config| config.cuda.devices.iter_mut().for_each(|gpu| gpu.memory_bytes = 1 << 20)),
    ] {
        assert_eq!(chosen(&plan), [StreamOrdering::HostFence; 2], "{:?}", plan.config.cuda);
    }
}

#[test]
fn context_events_that_were_asked_for_and_cannot_be_had_are_an_error_on_every_rank() {
    let wish = StreamOrdering::ContextEvents;
    for reason in refused(wish, |config| config.cuda.driver_version = 12040) {
        assert!(reason.contains("12.4") && reason.contains("12.5"), "{reason}");
    }
    for reason in refused(wish, |config| config.cuda.context_events_are_empty = true) {
        assert!(reason.contains("cuCtxRecordEvent did not wait"), "{reason}");
    }
}

#[test]
fn the_host_orders_where_nccl_copies_by_the_driver_in_the_midst_of_a_collective() {
    let stubs = Stubs::install(&Config::default()).unwrap();
    let copies = |_, mut settings: super::Settings| {
        settings.variables.copies = Some("NCCL_SHM_USE_CUDA_MEMCPY");
        settings
    };
    let orderings = Plan::of(2).run_each(|_| &stubs, copies, |rank| rank.unwrap().nccl.ordering());
    assert_eq!(orderings, [StreamOrdering::HostFence; 2]);
    let asked = Plan::of(2).ordered(StreamOrdering::ContextEvents);
    let errors = asked.run_each(|_| &stubs, copies, |rank| rank.map(|_| ()).unwrap_err());
    for error in errors {
        let Error::Device { error, .. } = error else { panic!("{error}") };
        let DeviceError::Ordering { reason } = *error else { panic!("{error}") };
        assert!(reason.contains("NCCL_SHM_USE_CUDA_MEMCPY"), "{reason}");
    }
}

#[test]
fn ranks_may_be_ordered_differently() {
    let plan = Plan::of(2);
    let stubs = Stubs::install(&plan.config).unwrap();
    let orderings = [StreamOrdering::ContextEvents, StreamOrdering::HostFence];
    plan.run_each(
        |_| &stubs,
        |rank, settings| super::Settings { ordering: orderings[rank], ..settings },
        |rank| {
            let rank = rank.unwrap();
            assert_eq!(rank.nccl.ordering(), orderings[rank.rank]);
            assert_eq!(rank.reduce().unwrap(), sums());
        },
    );
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}

/// What two ranks make of [`Rank::reduce`].
fn sums() -> Vec<u8> {
    values::bytes(DType::F32, (0..4).map(|at| values::reduced(ReduceOp::Sum, 2, at)))
}

/// Each round reads a result and writes the next operand to the same memory, as training does with its buckets.
fn rounds(rank: &Rank) {
    const LEN: usize = 1000;
    let block = Arc::new(rank.memory(LEN * 4));
    let region = block.region;
    for round in 0..30 {
        let source = rank.memory(region.len_bytes);
        super::write(source.region, &values::bytes(DType::F32, [f64::from(round) + 1.0; LEN].into_iter()));
        rank.copy(source.region, region);
        rank.later(source);
        let operation = DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum };
        rank.start(operation, DType::F32, block.clone()).unwrap().join().unwrap();
        let result = rank.memory(region.len_bytes);
        rank.copy(region, result.region);
        // No wait of the host between the rounds: only the order of the streams keeps them apart.
        if round % 10 == 9 {
            rank.sync();
            let expected = values::bytes(DType::F32, [2.0 * (f64::from(round) + 1.0); LEN].into_iter());
            assert_eq!(super::read(result.region), expected, "round {round}");
        }
        rank.later(result);
    }
    rank.sync();
}

#[test]
fn memory_that_is_used_again_at_once_holds_what_each_round_computed() {
    for ordering in [StreamOrdering::ContextEvents, StreamOrdering::HostFence] {
        for seed in 1..4 {
            let plan = Plan::of(2).ordered(ordering).with(|config| {
                (config.cuda.seed, config.nccl.seed) = (seed, seed);
                (config.cuda.max_delay_us, config.nccl.max_delay_us) = (500, 500);
            });
            plan.run(|rank| rounds(&rank));
        }
    }
}

#[test]
fn a_flight_that_is_joined_late_is_as_good_as_one_that_is_joined_at_once() {
    for ordering in [StreamOrdering::ContextEvents, StreamOrdering::HostFence] {
        Plan::of(2).ordered(ordering).run(|rank| {
            let block = Arc::new(rank.computed(&values::of(DType::F32, rank.rank, 4)));
            let region = block.region;
            let operation = DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum };
            let first = rank.start(operation, DType::F32, block.clone()).unwrap();
            assert_eq!(rank.reduce().unwrap(), sums());
            first.join().unwrap();
            assert_eq!(rank.read(region), sums());
        });
    }
}
