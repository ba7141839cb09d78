//! A group of one: what goes in must come out.

use anyhow::ensure;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_nccl::{ProcessGroup, ReduceOp, StreamOrdering, functions};
use serde_json::json;

use crate::Options;
use crate::device::Kind;
use crate::outcome::Ending;
use crate::parameters::noise;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// One element, odd sizes, and more than any internal buffer of NCCL.
const SHAPES: [[usize; 2]; 4] = [[1, 1], [7, 3], [129, 1001], [4, 1 << 20]];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

type Collective = Box<dyn Fn(Tensor<2>, &ProcessGroup) -> burn_nccl::Result<Tensor<2>>>;

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let (device, group) = (options.device.device(0), options.device.group(StreamOrdering::Auto)?);
    let mut calls = 0;
    for dtype in DTYPES {
        for shape in SHAPES {
            for (name, collective) in collectives() {
                for is_shared in [false, true] {
                    let found = one(&device, &group, dtype, shape, &collective, is_shared);
                    let (sent, got) =
                        found.map_err(|e| e.context(format!("{name} of {shape:?} {dtype:?}")))?;
                    ensure!(sent == got, "{name} of {shape:?} {dtype:?} changed the values");
                    calls += 1;
                }
            }
        }
    }
    let by_nccl = group.device_transport_report();
    ensure!(options.device == Kind::Cpu || by_nccl.is_some(), "the collectives did not go by NCCL");
    Ok(Ending::Passed(json!({ "collectives": calls, "dtypes": ["f32", "f16", "bf16"] })))
}

fn collectives() -> Vec<(String, Collective)> {
    let mut all: Vec<(String, Collective)> = Vec::new();
    for op in OPS {
        all.push((
            format!("all_reduce {op:?}"),
            Box::new(move |x, group| functions::all_reduce(x, op, group)),
        ));
        all.push((
            format!("reduce_scatter {op:?}"),
            Box::new(move |x, group| functions::reduce_scatter(x, op, group)),
        ));
    }
    all.push(("broadcast".into(), Box::new(|x, group| functions::broadcast(x, 0, group))));
    all.push(("all_gather".into(), Box::new(functions::all_gather)));
    all.push(("all_to_all".into(), Box::new(functions::all_to_all)));
    all
}

/// What was sent and what came back; `is_shared` keeps the operand, which then cannot be written in place.
fn one(
    device: &Device,
    group: &ProcessGroup,
    dtype: DType,
    shape: [usize; 2],
    collective: &Collective,
    is_shared: bool,
) -> anyhow::Result<(TensorData, TensorData)> {
    let values = (0..shape[0] * shape[1]).map(|i| noise(i as u64) as f32).collect::<Vec<_>>();
    let sent = TensorData::new(values, shape).convert_dtype(dtype);
    let tensor = Tensor::<2>::from_data(sent.clone(), (device, dtype));
    let kept = is_shared.then(|| tensor.clone());
    let got = collective(tensor, group)?.into_data();
    if let Some(kept) = kept {
        ensure!(kept.into_data() == sent, "the operand itself has changed");
    }
    Ok((sent, got))
}
