//! Collectives and graphs.

use anyhow::{Context, ensure};
use burn::tensor::Tensor;
use burn_nccl::{DeviceError, Error, ReduceOp, StreamOrdering, functions};
use serde_json::json;

use crate::Options;
use crate::device::{Kind, capturing};
use crate::outcome::Ending;

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    if options.device == Kind::Cpu {
        return Ending::skipped("graphs are CUDA's");
    }
    let (device, group) = (options.device.device(0), options.device.group(StreamOrdering::Auto)?);
    let numbers = || Tensor::<1>::from_data([1.0, 2.0], &device);
    // The communicator is made outside, and so is the operand: a capture refuses copies from the host.
    functions::all_reduce(numbers(), ReduceOp::Sum, &group)?;
    let operand = numbers();
    device.sync().map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let inside = capturing(&device, || functions::all_reduce(operand, ReduceOp::Sum, &group).map(drop))?;
    let refused = matches!(
        &inside, Err(Error::Device { error, .. }) if matches!(**error, DeviceError::Capturing { .. })
    );
    ensure!(refused, "a collective in a capture gave {inside:?}");
    let after = functions::all_reduce(numbers(), ReduceOp::Sum, &group).context("after the capture")?;
    ensure!(after.into_data().try_to_vec::<f32>()? == [1.0, 2.0], "the values are wrong after the capture");
    let text = inside.expect_err("it was refused").to_string();
    Ok(Ending::Passed(json!({ "refusal": text })))
}
