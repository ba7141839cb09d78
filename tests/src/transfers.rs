//! Every collective on a group, with results computed from rank, world size and place alone.

use burn_nccl::{DType, Error, ProcessGroup, ReduceOp};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where transports change their way, in bytes: what goes at once and what goes in chunks.
const BOUNDARIES: [usize; 2] = [16 * 1024, 256 * 1024];
/// Elements of the sums whose last bits depend on the order of adding.
const ROUNDED_ELEMENTS: [usize; 3] = [5, 5_003, 400_001];
/// Collectives on each of two groups at once.
const AT_ONCE: usize = 40;

/// What ran, and what came out where rounding shows the order of adding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transferred {
    /// The transport.
    pub transport: String,
    /// Calls whose results were compared.
    pub cases: usize,
    /// SHA-256 of sums and means of values of many sizes.
    pub sha256: String,
}

/// Runs every collective with every type and reduction around every boundary, and then two groups at once.
///
/// # Errors
/// What the group returns.
///
/// # Panics
/// Where a result is not what the ranks have given.
pub fn transfer(group: &ProcessGroup) -> Result<Transferred, Error> {
    let mut cases = 0;
    for dtype in DType::ALL {
        for count in counts(dtype, 1) {
            cases += parts(group, dtype, count)?;
        }
        for count in counts(dtype, group.world_size()) {
            cases += whole(group, dtype, count)?;
        }
    }
    cases += two_groups_at_once(group)?;
    Ok(Transferred { transport: group.transport_name().to_owned(), cases, sha256: rounded(group)? })
}

/// Elements just below, at and above every boundary of a buffer in `shares`.
fn counts(dtype: DType, shares: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 3];
    for boundary in BOUNDARIES {
        let at = boundary / dtype.size_bytes();
        counts.extend([at - 1, at, at + 1]);
        if shares > 1 && boundary == BOUNDARIES[1] {
            counts.push(at * shares + 1);
        }
    }
    counts
}

/// The value of one element of a rank: 1 to 3, so that every result here is exact in every type.
fn value(rank: usize, index: usize) -> f64 {
    ((2 * rank + index) % 3 + 1) as f64
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
            DType::U8 => bytes.push(value as u8),
        }
    }
    bytes
}

fn given(dtype: DType, rank: usize, range: std::ops::Range<usize>) -> Vec<u8> {
    encode(dtype, range.map(|index| value(rank, index)))
}

fn reduced(op: ReduceOp, ranks: usize, index: usize) -> f64 {
    let values = (0..ranks).map(|rank| value(rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Mean => values.sum::<f64>() / ranks as f64,
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => values.fold(0.0, f64::max),
        ReduceOp::Product => values.product(),
    }
}

/// Compares without printing megabytes.
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(found.len() == expected.len() && differs.is_none(), "{what}: byte {differs:?} differs");
}

/// Collectives on one buffer of all ranks.
fn whole(group: &ProcessGroup, dtype: DType, count: usize) -> Result<usize, Error> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let own = given(dtype, rank, 0..count);
    let mut cases = 0;
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
        let mut buffer = own.clone();
        group.all_reduce(&mut buffer, dtype, op)?;
        let expected = encode(dtype, (0..count).map(|index| reduced(op, ranks, index)));
        assert_same(&buffer, &expected, &format!("all_reduce of {count} {dtype}, {op}"));
        cases += 1;
    }
    for root in 0..ranks {
        let mut buffer = own.clone();
        group.broadcast(&mut buffer, dtype, root)?;
        assert_same(
            &buffer,
            &given(dtype, root, 0..count),
            &format!("broadcast of {count} {dtype} from {root}"),
        );
        cases += 1;
    }
    Ok(cases)
}

/// Collectives in which each rank gives or keeps a part, and messages.
fn parts(group: &ProcessGroup, dtype: DType, count: usize) -> Result<usize, Error> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let (bytes, last) = (count * dtype.size_bytes(), ranks - 1);
    let (own, wide) = (given(dtype, rank, 0..count), given(dtype, rank, 0..ranks * count));
    let all: Vec<u8> = (0..ranks).flat_map(|rank| given(dtype, rank, 0..count)).collect();
    let part = rank * count..(rank + 1) * count;
    let what = |name: &str| format!("{name} of {count} {dtype}");

    let mut found = vec![0; ranks * bytes];
    group.all_gather(&own, &mut found, dtype)?;
    assert_same(&found, &all, &what("all_gather"));

    let mut found = vec![0; bytes];
    group.reduce_scatter(&wide, &mut found, dtype, ReduceOp::Sum)?;
    let sums = part.clone().map(|index| reduced(ReduceOp::Sum, ranks, index));
    assert_same(&found, &encode(dtype, sums), &what("reduce_scatter"));

    let mut found = vec![0; ranks * bytes];
    group.gather(&own, (rank == last).then_some(&mut found[..]), dtype, last)?;
    assert_same(&found, &if rank == last { all } else { vec![0; ranks * bytes] }, &what("gather"));

    let mut found = vec![0; bytes];
    group.scatter((rank == last).then_some(&wide[..]), &mut found, dtype, last)?;
    assert_same(&found, &given(dtype, last, part.clone()), &what("scatter"));

    let mut found = vec![0; ranks * bytes];
    group.all_to_all(&wide, &mut found, dtype)?;
    let expected: Vec<u8> = (0..ranks).flat_map(|from| given(dtype, from, part.clone())).collect();
    assert_same(&found, &expected, &what("all_to_all"));

    if ranks > 1 {
        let (next, previous) = ((rank + 1) % ranks, (rank + last) % ranks);
        let mut found = vec![0; bytes];
        group.send_recv(&own, next, &mut found, previous, dtype)?;
        assert_same(&found, &given(dtype, previous, 0..count), &what("send_recv"));
        match rank {
            0 => group.send(&own, dtype, last)?,
            _ if rank == last => {
                group.recv(&mut found, dtype, 0)?;
                assert_same(&found, &given(dtype, 0, 0..count), &what("recv"));
            }
            _ => {}
        }
    }
    group.barrier()?;
    Ok(7)
}

/// A part of the group and the whole at the same time, from two threads.
fn two_groups_at_once(group: &ProcessGroup) -> Result<usize, Error> {
    let color = group.rank() % 2;
    let half = group.split(Some(color as u32), 0)?.expect("this rank has a color");
    let many = |group: &ProcessGroup, first: usize| -> Result<(), Error> {
        for round in 0..AT_ONCE {
            let count = first + 997 * round;
            let mut buffer = given(DType::F32, group.rank(), 0..count);
            group.all_reduce(&mut buffer, DType::F32, ReduceOp::Sum)?;
            let sums = (0..count).map(|index| reduced(ReduceOp::Sum, group.world_size(), index));
            assert_same(&buffer, &encode(DType::F32, sums), "all_reduce of one of two groups");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| many(&half, 1));
        many(group, 2)?;
        other.join().expect("the other group's results are right")
    })?;
    Ok(2 * AT_ONCE)
}

/// Sums and means of values of many sizes, which the order of adding changes in their last bits.
fn rounded(group: &ProcessGroup) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for count in ROUNDED_ELEMENTS {
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let mut buffer = encode(dtype, (0..count).map(|index| uneven(group.rank(), index)));
                group.all_reduce(&mut buffer, dtype, op)?;
                hash.update(&buffer);
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number between -2048 and 2048 with many digits, of a size that depends on rank and place.
pub fn uneven(rank: usize, index: usize) -> f64 {
    let bits = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(rank as u32 * 7 + 1);
    let unit = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    unit * f64::from(1u32 << (bits % 12))
}
