//! A long row of operations that nobody has put in order.

use std::collections::VecDeque;

use burn_nccl::{DType, ProcessGroup, ReduceOp};

use super::case::{Case, Op, Pending};
use super::values::scramble;

const OPERATIONS: u64 = 10_000;
/// As many as a training may have under way.
const MOST_PENDING: usize = 24;

/// The same row on every rank.
pub(super) fn check(group: &ProcessGroup) {
    row(group, 1, OPERATIONS);
}

/// `operations` operations, the same row for the same `seed`.
pub(super) fn row(group: &ProcessGroup, seed: u64, operations: u64) {
    let mut pending: VecDeque<Pending> = VecDeque::new();
    for number in 0..operations {
        let mut random = Random(scramble(seed << 32 | number));
        let case = case(&mut random, group.world_size());
        // Waited for in any order, this rank's own.
        if pending.len() == MOST_PENDING || random.below(4) == 0 {
            let index = (scramble(number ^ group.rank() as u64) % pending.len().max(1) as u64) as usize;
            pending.remove(index).into_iter().for_each(Pending::check);
        }
        match random.below(2) {
            0 => case.check(group),
            _ => pending.push_back(case.start(group)),
        }
    }
    pending.into_iter().for_each(Pending::check);
}

fn case(random: &mut Random, ranks: usize) -> Case {
    let dtype = DType::ALL[random.below(DType::ALL.len())];
    let supported: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).collect();
    let reduction = supported[random.below(supported.len())];
    let root = random.below(ranks);
    let step = 1 + random.below(ranks.max(2) - 1);
    let op = match random.below(11) {
        0 | 1 => Op::AllReduce(reduction),
        2 => Op::ReduceScatter(reduction),
        3 => Op::AllGather,
        4 => Op::Broadcast { root },
        5 => Op::Gather { root },
        6 => Op::Scatter { root },
        7 => Op::AllToAll,
        8 if ranks > 1 => Op::Ring { step },
        9 if ranks > 1 => Op::Message { from: root, to: (root + step) % ranks },
        10 => Op::AllGatherBytes,
        _ => Op::Barrier,
    };
    // Mostly short; now and then more than one chunk.
    let count = match random.below(64) {
        0 => random.below(100_000),
        1..8 => random.below(5_000),
        _ => random.below(40),
    };
    Case { op, dtype, count }
}

/// Numbers that are the same on every rank.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = scramble(self.0);
        (self.0 % limit as u64) as usize
    }
}
