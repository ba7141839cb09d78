//! What there is.

use burn::tensor::Tensor;
use burn_nccl::devices::GpuReport;
use burn_nccl::{ReduceOp, StreamOrdering, functions};
use serde_json::json;

use crate::Options;
use crate::device::Kind;
use crate::outcome::Ending;

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    if options.device == Kind::Cpu {
        return Ending::skipped("the CPU has neither a driver nor NCCL");
    }
    let (device, group) = (options.device.device(0), options.device.group(StreamOrdering::Auto)?);
    let one = Tensor::<1>::from_data([1.0], &device);
    functions::all_reduce(one, ReduceOp::Sum, &group)?;
    let Some(report) = group.device_transport_report() else {
        anyhow::bail!("a collective on a GPU did not go by NCCL");
    };
    Ok(Ending::Passed(json!({
        "gpus": options.device.count(),
        "nccl_version": report.nccl_version,
        "stream_ordering": report.stream_ordering.name(),
        "fusion": cfg!(feature = "fusion"),
        "report": GpuReport::read(),
    })))
}
