//! Groups within groups: who is in them, that they do not disturb each other, and that they outlive each other.

use burn_nccl::{DType, Failure, ProcessGroup, ReduceOp};

use super::case::{Case, Op};
use super::mixed::row;
use super::values::scramble;

pub(super) fn check(group: &ProcessGroup) {
    colors_choose_the_group_and_keys_the_rank(group);
    equal_keys_keep_the_order_and_no_color_joins_nothing(group);
    parts_have_parts_down_to_a_single_rank(group);
    parts_and_the_whole_take_turns(group);
    a_part_outlives_the_whole_and_the_whole_its_parts(group);
    a_failure_in_one_part_ends_that_part_alone(group);
}

/// Everything that a group must do, briefly.
fn works(group: &ProcessGroup) {
    let last = group.world_size() - 1;
    for (op, count) in [
        (Op::AllReduce(ReduceOp::Sum), 1_001),
        (Op::Broadcast { root: last }, 70_001),
        (Op::AllGather, 7),
        (Op::Gather { root: last }, 1),
        (Op::Barrier, 0),
    ] {
        Case { op, dtype: DType::F32, count }.check(group);
    }
}

/// The ranks that the members of `part` have in `group`, in the order of their ranks in `part`.
fn members(part: &ProcessGroup, group: &ProcessGroup) -> Vec<u8> {
    let mut members = vec![0; part.world_size()];
    part.all_gather(&[group.rank() as u8], &mut members, DType::U8).unwrap();
    members
}

fn colors_choose_the_group_and_keys_the_rank(group: &ProcessGroup) {
    let (rank, ranks) = (group.rank(), group.world_size());
    // Even and odd ranks apart, the last first.
    let part = group.split(Some(rank as u32 % 2), -(rank as i64)).unwrap().expect("it has a color");
    let expected: Vec<u8> = (0..ranks as u8).rev().filter(|other| *other % 2 == rank as u8 % 2).collect();
    assert_eq!((part.world_size(), members(&part, group)), (expected.len(), expected));
    assert_eq!(part.options(), group.options());
    works(&part);
    works(group);
}

fn equal_keys_keep_the_order_and_no_color_joins_nothing(group: &ProcessGroup) {
    let rank = group.rank();
    let part = group.split((rank > 0).then_some(u32::MAX), 7).unwrap();
    assert_eq!(part.is_none(), rank == 0);
    if let Some(part) = part {
        assert_eq!((part.rank(), part.world_size()), (rank - 1, group.world_size() - 1));
        works(&part);
    }
    assert!(group.split(None, 0).unwrap().is_none());
    works(group);
}

fn parts_have_parts_down_to_a_single_rank(group: &ProcessGroup) {
    let mut part = group.split(Some(0), 0).unwrap().expect("it has a color");
    while part.world_size() > 1 {
        let half = part.split(Some((part.rank() < part.world_size() / 2).into()), 0).unwrap();
        part = half.expect("it has a color");
        works(&part);
    }
    assert_eq!((part.rank(), part.transport_name()), (0, "single"));
    let alone = group.split(Some(group.rank() as u32), 0).unwrap().expect("it has a color");
    assert_eq!((alone.rank(), alone.world_size()), (0, 1));
    works(&alone);
}

fn parts_and_the_whole_take_turns(group: &ProcessGroup) {
    let halves = group.split(Some(group.rank() as u32 % 2), 0).unwrap().expect("it has a color");
    let mut pending = Vec::new();
    for count in 0..40 {
        let case = Case { op: Op::AllReduce(ReduceOp::Sum), dtype: DType::I64, count };
        pending.push(case.start(if count % 2 == 0 { group } else { &halves }));
        case.check(if count % 3 == 0 { &halves } else { group });
    }
    pending.into_iter().for_each(|pending| pending.check());
}

fn a_part_outlives_the_whole_and_the_whole_its_parts(group: &ProcessGroup) {
    let whole = group.split(Some(0), 0).unwrap().expect("it has a color");
    let part = whole.split(Some(whole.rank() as u32 % 2), 0).unwrap().expect("it has a color");
    drop(whole.split(Some(3), 0).unwrap());
    works(&whole);
    drop(whole);
    works(&part);
    drop(part);
    works(group);
}

/// The ranks of the failed part learn of it; the other part and the whole go on, with the same ranks.
fn a_failure_in_one_part_ends_that_part_alone(group: &ProcessGroup) {
    let fails = group.rank() % 2 == 1;
    let part = group.split(Some(fails.into()), 0).unwrap().expect("it has a color");
    if fails {
        if part.rank() == 0 {
            part.abort("the test wants it");
        }
        let error = part.all_reduce(&mut [0; 4], DType::F32, ReduceOp::Sum).unwrap_err();
        let is_aborted = matches!(error.failure(), Some(Failure::Aborted { rank: 0, .. }));
        // The one group that cannot fail has nobody to fail with.
        assert!(is_aborted, "{error}");
    } else {
        works(&part);
    }
    works(group);
    drop(part);
    works(group);
}

/// Overlapping groups, each with a thread of its own on each of its ranks, and the whole on this one.
pub(super) fn check_ten_at_once(group: &ProcessGroup) {
    const GROUPS: u64 = 10;
    const OPERATIONS: u64 = 150;
    let color = |number: u64| match scramble(number << 8 | group.rank() as u64) % 5 {
        0 if number > 4 => None,
        other => Some(other as u32 % 2),
    };
    let parts: Vec<Option<ProcessGroup>> =
        (0..GROUPS).map(|number| group.split(color(number), 0).unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, part) in parts.iter().enumerate() {
            scope.spawn(move || part.iter().for_each(|part| row(part, number as u64 + 2, OPERATIONS)));
        }
        row(group, 1, OPERATIONS);
    });
    works(group);
}
