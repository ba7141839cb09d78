//! Collectives between kernels that take long and reads that come at once: a wait that is missing shows as a value of an
//! earlier round.
//!
//! With `A = k` everywhere and `M = 1/n`, `A M = k` exactly: all partial sums are multiples of `k / n` below `k`, also in
//! TF32. So the long way to the operand ends in a number that is known without computing it.

use anyhow::ensure;
use burn::tensor::{Device, Tensor};
use burn_nccl::{ProcessGroup, ReduceOp, StreamOrdering, functions};
use serde_json::json;

use crate::Options;
use crate::device::Kind;
use crate::outcome::Ending;

/// Products before each collective.
const CHAIN: usize = 8;
/// Integers below are exact in TF32.
const MOST: usize = 1000;

pub(crate) fn run(ordering: StreamOrdering, options: &Options) -> anyhow::Result<Ending> {
    ensure!(options.matrix.is_power_of_two(), "the size of the matrices is a power of two");
    let (device, group) = (options.device.device(0), options.device.group(ordering)?);
    let averaging = Tensor::<2>::full([options.matrix; 2], 1.0 / options.matrix as f64, &device);
    for round in 0..options.rounds {
        one(round, &averaging, &device, &group)?;
    }
    if options.device == Kind::Cuda {
        let report = group.device_transport_report();
        let found = report.map(|report| report.stream_ordering);
        ensure!(found == Some(ordering), "asked for {ordering}, and the group says {found:?}");
    }
    Ok(Ending::Passed(json!({ "rounds": options.rounds, "matrix": options.matrix, "chain": CHAIN })))
}

fn one(round: usize, averaging: &Tensor<2>, device: &Device, group: &ProcessGroup) -> anyhow::Result<()> {
    let value = (round % MOST + 1) as f64;
    let shape = averaging.dims();
    let mut operand = Tensor::<2>::full(shape, value, device);
    for _ in 0..CHAIN {
        operand = operand.matmul(averaging.clone());
    }
    // Both kinds write to memory of their own, which a group of one would leave alone if it could.
    let kept = operand.clone();
    let result = match round % 2 {
        0 => functions::all_reduce(operand, ReduceOp::Sum, group)?,
        _ => functions::all_gather(operand, group)?,
    };
    // What the collective reads is free from here on as far as this program knows, and is asked for again.
    drop(kept);
    let spoiler = Tensor::<2>::full(shape, -1.0, device).matmul(averaging.clone());
    let doubled = result * 2.0;
    let found: [f32; 2] = [doubled.clone().min().into_scalar(), doubled.max().into_scalar()];
    drop(spoiler);
    let expected = 2.0 * value as f32 * group.world_size() as f32;
    ensure!(
        found == [expected; 2],
        "round {round}: expected {expected}, found from {} to {}",
        found[0],
        found[1]
    );
    Ok(())
}
