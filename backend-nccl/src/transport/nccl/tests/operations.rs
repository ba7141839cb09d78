//! Every operation, against a formula.

use std::sync::Arc;

use super::{Plan, Rank, values};
use crate::transport::{
    DType, ReduceOp, StreamOrdering,
    nccl::operation::{DeviceOperation, Region},
};

const BOTH: [StreamOrdering; 2] = [StreamOrdering::ContextEvents, StreamOrdering::HostFence];
/// Not a multiple of anything.
const LEN: usize = 37;

/// Runs one operation to its end, and what `recv` holds then in the eyes of the computation.
fn result(
    rank: &Rank,
    operation: DeviceOperation,
    dtype: DType,
    recv: Region,
    keep: impl Send + 'static,
) -> Vec<u8> {
    let keep = Arc::new(std::sync::Mutex::new(keep));
    rank.start(operation, dtype, keep.clone()).unwrap().join().unwrap();
    let seen = rank.read(recv);
    drop(keep);
    seen
}

fn all_reduce(rank: &Rank, dtype: DType, op: ReduceOp) {
    let expected = values::bytes(dtype, (0..LEN).map(|at| values::reduced(op, rank.world_size, at)));
    let send = rank.computed(&values::of(dtype, rank.rank, LEN));
    let recv = rank.memory(send.region.len_bytes);
    let (from, to) = (send.region, recv.region);
    let outside = DeviceOperation::AllReduce { send: from, recv: to, op };
    assert_eq!(result(rank, outside, dtype, to, (send, recv)), expected, "{op} of {dtype}");
    let block = rank.computed(&values::of(dtype, rank.rank, LEN));
    let region = block.region;
    let inside = DeviceOperation::AllReduce { send: region, recv: region, op };
    assert_eq!(result(rank, inside, dtype, region, block), expected, "{op} of {dtype} in place");
}

fn reduce_scatter(rank: &Rank, dtype: DType, op: ReduceOp) {
    let send = rank.computed(&values::of(dtype, rank.rank, LEN * rank.world_size));
    let recv = rank.memory(send.region.len_bytes / rank.world_size);
    let (from, to) = (send.region, recv.region);
    let own = rank.rank * LEN..(rank.rank + 1) * LEN;
    let expected = values::bytes(dtype, own.map(|at| values::reduced(op, rank.world_size, at)));
    let operation = DeviceOperation::ReduceScatter { send: from, recv: to, op };
    assert_eq!(result(rank, operation, dtype, to, (send, recv)), expected, "{op} of {dtype}");
}

fn broadcast(rank: &Rank, dtype: DType, root: usize) {
    let block = rank.computed(&values::of(dtype, rank.rank, LEN));
    let region = block.region;
    let operation = DeviceOperation::Broadcast { send: region, recv: region, root };
    assert_eq!(
        result(rank, operation, dtype, region, block),
        values::of(dtype, root, LEN),
        "{dtype} of {root}"
    );
}

fn all_gather(rank: &Rank, dtype: DType) {
    let send = rank.computed(&values::of(dtype, rank.rank, LEN));
    let recv = rank.memory(send.region.len_bytes * rank.world_size);
    let (from, to) = (send.region, recv.region);
    let expected: Vec<u8> = (0..rank.world_size).flat_map(|rank| values::of(dtype, rank, LEN)).collect();
    let operation = DeviceOperation::AllGather { send: from, recv: to };
    assert_eq!(result(rank, operation, dtype, to, (send, recv)), expected, "{dtype}");
}

fn all_to_all(rank: &Rank, dtype: DType) {
    // Part `i` of rank `r` is that of a rank `r + i`, so that every part differs.
    let parts = |from: usize| (0..rank.world_size).map(move |to| values::of(dtype, from + to, LEN));
    let send = rank.computed(&parts(rank.rank).flatten().collect::<Vec<u8>>());
    let recv = rank.memory(send.region.len_bytes);
    let (from, to) = (send.region, recv.region);
    let expected: Vec<u8> =
        (0..rank.world_size).filter_map(|from| parts(from).nth(rank.rank)).flatten().collect();
    let operation = DeviceOperation::AllToAll { send: from, recv: to };
    assert_eq!(result(rank, operation, dtype, to, (send, recv)), expected, "{dtype}");
}

/// Every rank sends to the next one.
fn exchange(rank: &Rank, dtype: DType) {
    let (next, before) =
        ((rank.rank + 1) % rank.world_size, (rank.rank + rank.world_size - 1) % rank.world_size);
    let send = rank.computed(&values::of(dtype, rank.rank, LEN));
    let recv = rank.memory(send.region.len_bytes);
    let (from, to) = (send.region, recv.region);
    let operation = DeviceOperation::Exchange { send: Some((from, next)), receive: Some((to, before)) };
    assert_eq!(result(rank, operation, dtype, to, (send, recv)), values::of(dtype, before, LEN), "{dtype}");
}

/// Two parts with gaps before, between and after them, which hold something else first.
fn bucket(rank: &Rank, dtype: DType, op: ReduceOp) {
    let size = dtype.size_bytes();
    let (first, second) = (LEN * size, 5 * size);
    let at = [2 * size, 4 * size + first];
    let len = at[1] + second + 3 * size;
    let parts =
        [rank.computed(&values::of(dtype, rank.rank, LEN)), rank.computed(&values::of(dtype, rank.rank, 5))];
    let bucket = rank.computed(&vec![0xee; len]);
    let region = bucket.region;
    let operation = DeviceOperation::Bucket {
        parts: parts.iter().zip(at).map(|(part, at)| (part.region, at)).collect(),
        bucket: region,
        op,
    };
    let seen = result(rank, operation, dtype, region, (parts, bucket));
    let expected = |len| values::bytes(dtype, (0..len).map(|at| values::reduced(op, rank.world_size, at)));
    assert_eq!(seen[at[0]..at[0] + first], expected(LEN), "{op} of {dtype}");
    assert_eq!(seen[at[1]..at[1] + second], expected(5), "{op} of {dtype}");
    let gaps = [&seen[..at[0]], &seen[at[0] + first..at[1]], &seen[at[1] + second..]];
    assert!(gaps.concat().iter().all(|byte| *byte == 0), "{op} of {dtype}: {gaps:?}");
}

fn everything(rank: &Rank) {
    for dtype in DType::ALL {
        for op in values::reductions(dtype) {
            all_reduce(rank, dtype, op);
            reduce_scatter(rank, dtype, op);
        }
        (0..rank.world_size).for_each(|root| broadcast(rank, dtype, root));
        all_gather(rank, dtype);
        all_to_all(rank, dtype);
        exchange(rank, dtype);
        bucket(rank, dtype, ReduceOp::Sum);
    }
}

#[test]
fn every_operation_on_every_type_is_its_formula_on_one_rank() {
    for ordering in BOTH {
        Plan::of(1).ordered(ordering).run(|rank| everything(&rank));
    }
}

#[test]
fn every_operation_on_every_type_is_its_formula_on_two_ranks() {
    for ordering in BOTH {
        Plan::of(2).ordered(ordering).run(|rank| everything(&rank));
    }
}

#[test]
fn every_operation_on_every_type_is_its_formula_on_three_ranks() {
    for ordering in BOTH {
        Plan::of(3).ordered(ordering).run(|rank| everything(&rank));
    }
}

#[test]
fn operations_that_nccl_starts_later_are_the_same() {
    for ordering in BOTH {
        let plan = Plan::of(2).ordered(ordering).with(|config| config.nccl.in_progress_polls = 3);
        plan.run(|rank| {
            all_reduce(&rank, DType::F32, ReduceOp::Mean);
            bucket(&rank, DType::BF16, ReduceOp::Sum);
            all_to_all(&rank, DType::I64);
        });
    }
}

#[test]
fn a_message_may_go_one_way() {
    Plan::of(2).run(|rank| {
        let block = rank.computed(&values::of(DType::U8, rank.rank, LEN));
        let region = block.region;
        let operation = match rank.rank {
            0 => DeviceOperation::Exchange { send: Some((region, 1)), receive: None },
            _ => DeviceOperation::Exchange { send: None, receive: Some((region, 0)) },
        };
        assert_eq!(result(&rank, operation, DType::U8, region, block), values::of(DType::U8, 0, LEN));
    });
}

#[test]
fn operations_on_nothing_end_like_others() {
    let nothing = Region { address: 0, len_bytes: 0 };
    for ordering in BOTH {
        Plan::of(2).ordered(ordering).run(|rank| {
            let empty = Some((nothing, 1 - rank.rank));
            let op = ReduceOp::Sum;
            for operation in [
                DeviceOperation::AllReduce { send: nothing, recv: nothing, op },
                DeviceOperation::Broadcast { send: nothing, recv: nothing, root: 1 },
                DeviceOperation::AllGather { send: nothing, recv: nothing },
                DeviceOperation::ReduceScatter { send: nothing, recv: nothing, op },
                DeviceOperation::AllToAll { send: nothing, recv: nothing },
                DeviceOperation::Exchange { send: empty, receive: empty },
                DeviceOperation::Bucket { parts: vec![(nothing, 0)], bucket: nothing, op },
            ] {
                rank.start(operation, DType::F32, ()).unwrap().join().unwrap();
            }
            all_gather(&rank, DType::F32);
        });
    }
}

#[test]
fn many_operations_may_be_under_way_before_the_first_is_waited_for() {
    for ordering in BOTH {
        Plan::of(2).ordered(ordering).run(|rank| {
            let flights: Vec<_> = (0..20)
                .map(|number| {
                    let block = rank.computed(&values::bytes(DType::F64, [number as f64; LEN].into_iter()));
                    let region = block.region;
                    let operation =
                        DeviceOperation::AllReduce { send: region, recv: region, op: ReduceOp::Sum };
                    let block = Arc::new(block);
                    (rank.start(operation, DType::F64, block.clone()).unwrap(), block)
                })
                .collect();
            for (number, (flight, block)) in flights.into_iter().enumerate() {
                flight.join().unwrap();
                let expected = values::bytes(DType::F64, [2.0 * number as f64; LEN].into_iter());
                assert_eq!(rank.read(block.region), expected, "operation {number}, {ordering}");
            }
        });
    }
}
