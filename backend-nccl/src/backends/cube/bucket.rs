//! Gradients in one flat tensor, copied there and reduced by NCCL's own stream: no kernel runs for it.

use burn::tensor::Shape;
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use burn_std::Metadata;

use super::{
    collectives::check,
    host,
    memory::{self, Pins},
};
use crate::{
    dtype::wire_dtype,
    error::Result,
    group::Planned,
    ops::{AsyncCall, Call, FlatBucket},
    transport::{
        ReduceOp,
        nccl::{DeviceOperation, Nccl},
    },
};

/// What the memory is for, in messages.
const PURPOSE: &str = "a bucket of gradients";

pub(super) fn start(
    nccl: &Nccl,
    parts: Vec<CubeTensor>,
    bucket: &FlatBucket,
    op: ReduceOp,
    call: &AsyncCall,
) -> CubeTensor {
    let (client, device, dtype) = (parts[0].client.clone(), parts[0].device.clone(), parts[0].dtype);
    let flat = memory::empty(&client, &device, Shape::new([bucket.len]), dtype);
    if bucket.len == 0 {
        return flat;
    }
    let started = plan(parts, &flat, bucket, op, call.call()).and_then(|planned| {
        let _site = call.enter();
        call.group().start_on_device(nccl, planned, || memory::fence(&client))
    });
    match started {
        Ok(work) => call.leave(work),
        Err(error) => call.fail(error),
    }
    flat
}

fn plan(
    parts: Vec<CubeTensor>,
    flat: &CubeTensor,
    bucket: &FlatBucket,
    op: ReduceOp,
    call: &Call,
) -> Result<Planned> {
    check(flat, PURPOSE, call)?;
    let parts: Vec<(CubeTensor, usize)> = parts
        .into_iter()
        .zip(&bucket.ranges)
        .filter(|(_, range)| !range.is_empty())
        .map(|(part, range)| (into_contiguous(part), range.start * flat.dtype.size()))
        .collect();
    let pinned = memory::at_once(&flat.client, || {
        let mut pins = Pins::new();
        let mut source = |(part, offset): &(CubeTensor, usize)| {
            memory::pin_source(part, PURPOSE, &mut pins).map(|region| (region, *offset))
        };
        let regions = parts.iter().map(&mut source).collect::<Result<Vec<_>, _>>()?;
        let target = memory::pin(flat, PURPOSE, &mut pins)?;
        Ok((regions, target, pins))
    });
    let (regions, target, pins) = pinned.map_err(|error| call.device_error(error))?;
    let operation = DeviceOperation::Bucket { parts: regions, bucket: target, op };
    Ok(Planned { operation, dtype: wire_dtype(flat.dtype)?, keep: Box::new(pins) })
}

/// Views where the parts begin at the device's alignment. Burn's own slice would copy a part whose end is not at it.
pub(super) fn parts(flat: &CubeTensor, bucket: &FlatBucket) -> Vec<CubeTensor> {
    let size = flat.dtype.size();
    let alignment = flat.client.properties().memory.alignment as usize;
    let total = bucket.len * size;
    let part = |range: &std::ops::Range<usize>| {
        let (start, end) = (range.start * size, (range.end * size).next_multiple_of(alignment));
        if range.is_empty() || !start.is_multiple_of(alignment) || end > total {
            return host::slice::<CubeBackend>(flat, range.clone());
        }
        let handle = flat.handle.clone().offset_start(start as u64).offset_end((total - end) as u64);
        let metadata = Metadata::new(Shape::new([range.len()]), flat.meta.strides().clone());
        CubeTensor::new(flat.client.clone(), handle, metadata, flat.device.clone(), flat.dtype)
    };
    bucket.ranges.iter().map(part).collect()
}
