//! What every transport must do, for any number of ranks: one suite for all of them.
//!
//! Every expected value is a formula of rank, world size and index. The suite runs in threads of one process (the binary
//! `conformance`) and in processes of their own, under a launcher or `mpirun` (the scenario `Conformance` of `test-rank`).

// The one name that leaves this folder is seen from another crate, but not from the test binary.
#![allow(unreachable_pub)]

mod case;
mod groups;
mod mixed;
mod rounding;
mod timing;
mod values;

use burn_nccl::{DType, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use self::case::{Case, Op};

/// A part of the suite. Every rank of a group must play the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Every operation on every type and reduction, at small sizes and where one way to move bytes gives way to another.
    Everything,
    /// Every operation on 64 MB a rank, once.
    Large,
    /// Every operation in the background, many at a time.
    Asynchronous,
    /// What is not exact: halves, not-a-number, the order of additions.
    Rounding,
    /// The halves of it, which are the same however ranks are laid out over hosts.
    Halves,
    /// When a call may return.
    Timing,
    /// 10,000 operations of any kind in a row.
    Mixed,
    /// Groups within groups.
    Groups,
    /// Ten groups at once.
    ManyGroups,
}

impl Part {
    /// Every part.
    // Where each part is a test of its own, nobody asks for all of them.
    #[allow(dead_code)]
    pub const ALL: [Self; 9] = [
        Self::Everything,
        Self::Large,
        Self::Asynchronous,
        Self::Rounding,
        Self::Halves,
        Self::Timing,
        Self::Mixed,
        Self::Groups,
        Self::ManyGroups,
    ];

    /// Plays it as one rank of `group`.
    ///
    /// # Panics
    /// On anything that is not as it should be.
    pub fn play(self, group: &ProcessGroup) {
        match self {
            Self::Everything => everything(group),
            Self::Large => large(group),
            Self::Asynchronous => asynchronous(group),
            Self::Rounding => rounding::check(group),
            Self::Halves => rounding::check_halves(group),
            Self::Timing => timing::check(group),
            Self::Mixed => mixed::check(group),
            Self::Groups => groups::check(group),
            Self::ManyGroups => groups::check_ten_at_once(group),
        }
    }
}

/// The sizes in bytes at which some transport goes from one way of moving bytes to another, or from one chunk to the
/// next: `DIRECT_BYTES` and `CHUNK_BYTES` of TCP, and every power of two around them for the others.
const BOUNDARIES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];

/// Numbers of elements: none, one, few, odd.
const COUNTS: [usize; 6] = [0, 1, 2, 3, 7, 1001];

/// One element under, at and over each boundary, for a buffer and for each rank's part of one.
fn counts_at_boundaries(dtype: DType, ranks: usize) -> Vec<usize> {
    let parts = BOUNDARIES.map(|bytes| bytes * ranks).into_iter().filter(|bytes| *bytes <= 1 << 20);
    let mut boundaries: Vec<usize> = BOUNDARIES.into_iter().chain(parts).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    let elements = boundaries.into_iter().map(|bytes| bytes / dtype.size_bytes());
    elements.flat_map(|count| [count - 1, count, count + 1]).collect()
}

/// Every operation that moves bytes and adds nothing up; each rank is the root, the sender and the receiver once.
fn moving(ranks: usize) -> Vec<Op> {
    let mut ops = vec![Op::AllGather, Op::AllToAll, Op::AllGatherBytes, Op::Barrier];
    for rank in 0..ranks {
        let next = (rank + 1) % ranks;
        ops.extend([Op::Broadcast { root: rank }, Op::Gather { root: rank }, Op::Scatter { root: rank }]);
        // Nobody sends messages to himself.
        if rank != 0 {
            ops.push(Op::Ring { step: rank });
        }
        if next != rank {
            ops.extend([Op::Message { from: rank, to: next }, Op::Message { from: next, to: rank }]);
        }
    }
    ops
}

fn everything(group: &ProcessGroup) {
    for (dtype, reduction) in values::reductions() {
        for op in [Op::AllReduce(reduction), Op::ReduceScatter(reduction)] {
            check(group, op, dtype, &COUNTS);
            // Where bytes are cut does not depend on how they are added up.
            if reduction == ReduceOp::Sum {
                check(group, op, dtype, &counts_at_boundaries(dtype, group.world_size()));
            }
        }
    }
    for dtype in DType::ALL {
        for op in moving(group.world_size()) {
            check(group, op, dtype, &COUNTS);
        }
    }
    // These move bytes and know nothing of types: the type of one byte reaches every boundary.
    for op in moving(group.world_size()) {
        check(group, op, DType::U8, &counts_at_boundaries(DType::U8, group.world_size()));
    }
}

fn check(group: &ProcessGroup, op: Op, dtype: DType, counts: &[usize]) {
    for &count in counts {
        Case { op, dtype, count }.check(group);
    }
}

/// 64 MB on each rank, in the whole buffer where each rank has a part of it.
fn large(group: &ProcessGroup) {
    const BYTES: usize = 64 << 20;
    let ranks = group.world_size();
    let dtype = DType::F32;
    let whole = BYTES / dtype.size_bytes();
    let last = ranks - 1;
    let mut cases = vec![
        (Op::AllReduce(ReduceOp::Sum), whole),
        (Op::Broadcast { root: last }, whole),
        (Op::ReduceScatter(ReduceOp::Max), whole / ranks),
        (Op::AllGather, whole / ranks),
        (Op::AllToAll, whole / ranks),
        (Op::Gather { root: last }, whole / ranks),
        (Op::Scatter { root: 0 }, whole / ranks),
        (Op::AllGatherBytes, whole / ranks / ranks),
    ];
    if ranks > 1 {
        cases.push((Op::Ring { step: 1 }, whole));
        cases.push((Op::Message { from: 0, to: last }, whole));
    }
    cases.into_iter().for_each(|(op, count)| Case { op, dtype, count }.check(group));
}

/// All at once, then waited for from the last to the first, with calls of this thread in between.
fn asynchronous(group: &ProcessGroup) {
    let ranks = group.world_size();
    for (dtype, count) in [(DType::F32, 0), (DType::I64, 1001), (DType::F16, 70_001)] {
        let mut ops = moving(ranks);
        ops.extend([Op::AllReduce(ReduceOp::Sum), Op::ReduceScatter(ReduceOp::Min)]);
        let mut pending = Vec::new();
        for (index, op) in ops.into_iter().enumerate() {
            pending.push(Case { op, dtype, count }.start(group));
            if index % 5 == 4 {
                Case { op: Op::AllReduce(ReduceOp::Product), dtype, count: 33 }.check(group);
            }
        }
        pending.into_iter().rev().for_each(|pending| pending.check());
    }
}
