//! One conformance suite for every transport and world size; expected values come from rank and world size.

use std::time::Duration;

use burn_nccl::{DType, Error, GroupOptions, ProcessGroup, ReduceOp};
use half::{bf16, f16};

const LENGTHS: [usize; 7] = [0, 1, 2, 3, 7, 1000, 1 << 18];
const WORLD_SIZES: [usize; 4] = [1, 2, 3, 4];

fn options() -> GroupOptions {
    GroupOptions::default()
        .with_timeout(Duration::from_secs(60))
        .with_connect_timeout(Duration::from_secs(30))
}

/// Runs `body` on every rank of a group over TCP, or on the single transport, and returns the results in rank order.
fn on_ranks<T: Send>(world_size: usize, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let groups = if world_size == 1 {
        vec![ProcessGroup::single()]
    } else {
        ProcessGroup::local(world_size, options()).unwrap()
    };
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The value of element `index` on `rank`: 1 to 4, so that every result here is exact in every type.
fn value(rank: usize, index: usize) -> f64 {
    ((rank + index) % 4 + 1) as f64
}

fn encode(dtype: DType, values: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match dtype {
            DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
            DType::F64 => bytes.extend(value.to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
            DType::I32 => bytes.extend((value as i32).to_ne_bytes()),
            DType::I64 => bytes.extend((value as i64).to_ne_bytes()),
            DType::U8 => bytes.push(value as u64 as u8),
        }
    }
    bytes
}

fn reduced(op: ReduceOp, world_size: usize, index: usize) -> f64 {
    let values = (0..world_size).map(|rank| value(rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Mean => values.sum::<f64>() / world_size as f64,
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => values.fold(0.0, f64::max),
        ReduceOp::Product => values.product(),
    }
}

fn reductions(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.supports(dtype))
}

#[test]
fn all_reduce_gives_every_rank_the_reduction_of_every_type_and_length() {
    for world_size in WORLD_SIZES {
        on_ranks(world_size, |group| {
            for dtype in DType::ALL {
                for op in reductions(dtype) {
                    for length in LENGTHS {
                        let mut buffer = encode(dtype, (0..length).map(|i| value(group.rank(), i)));
                        group.all_reduce(&mut buffer, dtype, op).unwrap();
                        let expected = encode(dtype, (0..length).map(|i| reduced(op, world_size, i)));
                        assert!(buffer == expected, "{op} of {length} {dtype} on {world_size} ranks");
                    }
                }
            }
        });
    }
}

#[test]
fn reduce_scatter_gives_every_rank_its_part_of_the_reduction() {
    for world_size in WORLD_SIZES {
        on_ranks(world_size, |group| {
            let rank = group.rank();
            for dtype in DType::ALL {
                for op in reductions(dtype) {
                    for length in [0, 1, 3, 1000, 50_001] {
                        let send = encode(dtype, (0..length * world_size).map(|i| value(rank, i)));
                        let mut recv = vec![0; length * dtype.size_bytes()];
                        group.reduce_scatter(&send, &mut recv, dtype, op).unwrap();
                        let part = rank * length..(rank + 1) * length;
                        let expected = encode(dtype, part.map(|i| reduced(op, world_size, i)));
                        assert!(recv == expected, "{op} of {length} {dtype} on {world_size} ranks");
                    }
                }
            }
        });
    }
}

#[test]
fn all_gather_and_broadcast_move_every_type_and_length_unchanged() {
    for world_size in WORLD_SIZES {
        on_ranks(world_size, |group| {
            let rank = group.rank();
            for dtype in DType::ALL {
                for length in LENGTHS {
                    let of = |rank: usize| encode(dtype, (0..length).map(|i| value(rank, i)));
                    let mut recv = vec![0; world_size * length * dtype.size_bytes()];
                    group.all_gather(&of(rank), &mut recv, dtype).unwrap();
                    assert!(recv == (0..world_size).flat_map(of).collect::<Vec<u8>>(), "{length} {dtype}");
                    for root in 0..world_size {
                        let mut buffer = of(rank);
                        group.broadcast(&mut buffer, dtype, root).unwrap();
                        assert!(buffer == of(root), "{length} {dtype} from {root} of {world_size}");
                    }
                }
            }
        });
    }
}

/// Floats of many magnitudes, so that another order of additions gives other bits.
fn floats(rank: usize, count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ (rank as u64 + 1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32
    };
    (0..count).map(|_| (next() - 8e6) * (next() / 16e6).powi(3)).collect()
}

#[test]
fn the_bits_do_not_depend_on_the_rank_nor_on_how_a_buffer_is_cut() {
    const COUNT: usize = 3_000_001;
    for world_size in [2, 3, 4] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let results = on_ranks(world_size, |group| {
                let mut whole = floats(group.rank(), COUNT);
                group.all_reduce(bytemuck::cast_slice_mut(&mut whole), DType::F32, op).unwrap();
                let mut cut = floats(group.rank(), COUNT);
                let mut rest = cut.as_mut_slice();
                for piece in [1, 2, 1000, 4097, 65_536, 1_000_003, usize::MAX] {
                    let (head, tail) = rest.split_at_mut(piece.min(rest.len()));
                    group.all_reduce(bytemuck::cast_slice_mut(head), DType::F32, op).unwrap();
                    rest = tail;
                }
                assert!(bytemuck::cast_slice::<_, u8>(&whole) == bytemuck::cast_slice::<_, u8>(&cut));
                whole
            });
            let ranks: Vec<Vec<f32>> = (0..world_size).map(|rank| floats(rank, COUNT)).collect();
            let expected: Vec<f32> = (0..COUNT)
                .map(|i| ranks.iter().skip(1).fold(ranks[0][i], |sum, rank| sum + rank[i]))
                .map(|sum| if op == ReduceOp::Mean { sum / world_size as f32 } else { sum })
                .collect();
            for result in results {
                assert!(result.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}

#[test]
fn values_of_any_length_are_gathered_by_rank() {
    for world_size in WORLD_SIZES {
        on_ranks(world_size, |group| {
            let of = |rank: usize| vec![rank as u8; rank * rank * 1000];
            let values = group.all_gather_bytes(&of(group.rank())).unwrap();
            assert_eq!(values, (0..world_size).map(of).collect::<Vec<_>>());
            assert_eq!(group.all_gather_bytes(&[]).unwrap(), vec![Vec::<u8>::new(); world_size]);
        });
    }
}

#[test]
fn asynchronous_calls_keep_their_place_among_the_others() {
    for world_size in WORLD_SIZES {
        on_ranks(world_size, |group| {
            let n = world_size as i64;
            let mut works = Vec::new();
            for round in 0..20i64 {
                let buffer = (round + group.rank() as i64).to_ne_bytes().to_vec();
                works.push(group.all_reduce_async(buffer, DType::I64, ReduceOp::Sum));
                if round % 5 == 0 {
                    let mut now = [round; 1];
                    group.all_reduce(bytemuck::cast_slice_mut(&mut now), DType::I64, ReduceOp::Sum).unwrap();
                    assert_eq!(now, [round * n]);
                    assert!(works.iter().all(|work| work.is_done()), "a later collective has ended");
                }
            }
            for (round, work) in works.into_iter().enumerate() {
                let sum = i64::from_ne_bytes(work.wait().unwrap().try_into().unwrap());
                assert_eq!(sum, round as i64 * n + n * (n - 1) / 2);
            }
        });
    }
}

#[test]
fn four_groups_at_once_choose_their_own_ports() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                on_ranks(3, |group| {
                    let mut sum = [1i32; 5];
                    group.all_reduce(bytemuck::cast_slice_mut(&mut sum), DType::I32, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, [3; 5]);
                })
            });
        }
    });
}

#[test]
fn every_rank_leaves_the_barrier_only_after_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for world_size in WORLD_SIZES {
        let arrived = AtomicUsize::new(0);
        on_ranks(world_size, |group| {
            for round in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= round * world_size);
                group.barrier().unwrap();
            }
        });
    }
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_before_anything_is_sent() {
    on_ranks(2, |group| {
        let mut seven = [0; 7];
        let length = group.all_reduce(&mut seven, DType::F32, ReduceOp::Sum).unwrap_err();
        assert!(matches!(length, Error::BufferLength { found: 7, .. }));
        assert_eq!(
            length.to_string(),
            "all_reduce: the data buffer has 7 bytes, expected a multiple of 4 for f32"
        );
        let mean = group.all_reduce(&mut [0; 8], DType::I64, ReduceOp::Mean).unwrap_err();
        assert!(matches!(mean, Error::UnsupportedReduction { .. }));
        let mean = group.all_reduce_async(vec![0; 8], DType::I64, ReduceOp::Mean).wait().unwrap_err();
        assert!(matches!(mean, Error::UnsupportedReduction { .. }));
        let root = group.broadcast(&mut [0; 8], DType::U8, 2).unwrap_err();
        assert!(matches!(root, Error::Root { root: 2, world_size: 2, .. }));
        let recv = group.all_gather(&[0; 4], &mut [0; 4], DType::U8).unwrap_err();
        assert!(matches!(recv, Error::BufferLength { buffer: "recv", found: 4, .. }));
        let send = group.reduce_scatter(&[0; 9], &mut [0; 4], DType::U8, ReduceOp::Sum).unwrap_err();
        assert!(matches!(send, Error::BufferLength { buffer: "send", found: 9, .. }));
        group.barrier().unwrap();
    });
}
