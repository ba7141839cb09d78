//! Results that are not exact, and must yet have the same bits on every rank and transport.

use burn_nccl::{DType, ProcessGroup, ReduceOp};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::values::scramble;

pub(super) fn check(group: &ProcessGroup) {
    check_halves(group);
    a_nan_of_any_rank_reaches_the_extremes(group);
    the_bits_are_those_of_additions_in_rank_order_however_a_buffer_is_cut(group);
}

pub(super) fn check_halves(group: &ProcessGroup) {
    halves_are_rounded_once(group);
    a_mean_of_large_halves_is_in_range(group);
}

fn reduced<T: Pod>(group: &ProcessGroup, dtype: DType, op: ReduceOp, mut values: Vec<T>) -> Vec<T> {
    group.all_reduce(cast_slice_mut(&mut values), dtype, op).unwrap();
    values
}

/// Above 2048, an f16 is even; above 256, a bf16. Ones that are added one by one in the type itself would all be lost.
fn halves_are_rounded_once(group: &ProcessGroup) {
    let (rank, ones) = (group.rank(), group.world_size() as f32 - 1.0);
    let own = |large: f32| if rank == 0 { large } else { 1.0 };
    for count in [1, 9, 40_001] {
        let found = reduced(group, DType::F16, ReduceOp::Sum, vec![f16::from_f32(own(2048.0)); count]);
        assert!(found.iter().all(|sum| *sum == f16::from_f32(2048.0 + ones)), "{:?}", found[0]);
        let found = reduced(group, DType::BF16, ReduceOp::Sum, vec![bf16::from_f32(own(256.0)); count]);
        assert!(found.iter().all(|sum| *sum == bf16::from_f32(256.0 + ones)), "{:?}", found[0]);
    }
}

/// No two ranks' values have a sum that f16 holds.
fn a_mean_of_large_halves_is_in_range(group: &ProcessGroup) {
    for count in [1, 9, 40_001] {
        let found = reduced(group, DType::F16, ReduceOp::Mean, vec![f16::from_f32(40000.0); count]);
        assert!(found.iter().all(|mean| *mean == f16::from_f32(40000.0)), "{:?}", found[0]);
    }
}

/// Rank `r` has its NaN in element `r`; the elements behind are numbers on all ranks.
fn a_nan_of_any_rank_reaches_the_extremes(group: &ProcessGroup) {
    let (rank, ranks) = (group.rank(), group.world_size());
    for count in [64, 30_000] {
        let values = (0..count).map(|index| if index == rank { f64::NAN } else { (index + rank) as f64 });
        let values: Vec<f64> = values.collect();
        for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum] {
            let expected = |index: usize| match op {
                ReduceOp::Min => index,
                ReduceOp::Max => index + ranks - 1,
                _ => index * ranks + ranks * (ranks - 1) / 2,
            } as f64;
            let check = |found: Vec<f64>, name: &str, largest: f64| {
                for (index, found) in found.into_iter().enumerate() {
                    let expected = expected(index);
                    let is_right = if index < ranks { found.is_nan() } else { found == expected };
                    assert!(
                        is_right || expected > largest,
                        "{op} of {name} {index}: {found}, not {expected}"
                    );
                }
            };
            check(reduced(group, DType::F64, op, values.clone()), "f64", f64::MAX);
            let single: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            let found = reduced(group, DType::F32, op, single);
            check(found.into_iter().map(f64::from).collect(), "f32", 1e7);
            let half: Vec<f16> = values.iter().map(|value| f16::from_f64(*value)).collect();
            check(reduced(group, DType::F16, op, half).into_iter().map(f64::from).collect(), "f16", 2e3);
            let half: Vec<bf16> = values.iter().map(|value| bf16::from_f64(*value)).collect();
            check(reduced(group, DType::BF16, op, half).into_iter().map(f64::from).collect(), "bf16", 250.0);
        }
    }
}

/// Floats of many magnitudes, so that another order of additions gives other bits.
fn floats(rank: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| {
        let random = scramble(index as u64 ^ (rank as u64 + 1) << 40);
        let (mantissa, exponent) = ((random >> 32) as i32 as f32, (random % 24) as i32);
        mantissa * 2f32.powi(-31 - exponent)
    };
    (0..count).map(value).collect()
}

fn the_bits_are_those_of_additions_in_rank_order_however_a_buffer_is_cut(group: &ProcessGroup) {
    const COUNT: usize = 700_001;
    let (rank, ranks) = (group.rank(), group.world_size());
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| floats(rank, COUNT)).collect();
    let sums =
        (0..COUNT).map(|index| all.iter().map(|values| values[index]).reduce(|a, b| a + b).unwrap_or(0.0));
    let sums: Vec<f32> = sums.collect();
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        let of = |sum: f32| if op == ReduceOp::Mean { sum / ranks as f32 } else { sum };
        let expected: Vec<f32> = sums.iter().copied().map(of).collect();
        let whole = reduced(group, DType::F32, op, all[rank].clone());
        assert!(cast_slice::<_, u8>(&whole) == cast_slice::<_, u8>(&expected), "{op} on {ranks} ranks");
        let mut cut = all[rank].clone();
        let mut rest = cut.as_mut_slice();
        for piece in [1, 2, 1000, 4097, 65_536, 300_003, usize::MAX] {
            let (head, tail) = rest.split_at_mut(piece.min(rest.len()));
            group.all_reduce(cast_slice_mut(head), DType::F32, op).unwrap();
            rest = tail;
        }
        assert!(cast_slice::<_, u8>(&cut) == cast_slice::<_, u8>(&expected), "{op} on {ranks} ranks, cut");
    }
    let narrow = |values: &[f32]| values.iter().map(|value| f16::from_f32(*value)).collect::<Vec<_>>();
    let halves: Vec<Vec<f16>> = all.iter().map(|values| narrow(values)).collect();
    let sum = |index: usize| halves.iter().map(|values| values[index].to_f32()).reduce(|a, b| a + b);
    let expected: Vec<f16> = (0..COUNT).map(|index| f16::from_f32(sum(index).unwrap_or(0.0))).collect();
    let found = reduced(group, DType::F16, ReduceOp::Sum, halves[rank].clone());
    assert!(cast_slice::<_, u8>(&found) == cast_slice::<_, u8>(&expected), "f16 on {ranks} ranks");
}
