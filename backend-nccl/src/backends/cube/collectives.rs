//! The collectives of the device path. Each returns when the computation that follows will see the result.

use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};

use super::memory::{self, Pins};
use crate::{
    device_error::DeviceError,
    dtype::wire_dtype,
    error::Result,
    group::{DeviceWork, Planned},
    ops::Call,
    transport::{
        ReduceOp,
        nccl::{DeviceOperation, Nccl, Region},
    },
};

pub(super) fn all_reduce(nccl: &Nccl, tensor: CubeTensor, op: ReduceOp, call: &Call) -> CubeTensor {
    in_place(nccl, "an all-reduce", tensor, call, |send, recv| DeviceOperation::AllReduce { send, recv, op })
}

pub(super) fn broadcast(nccl: &Nccl, tensor: CubeTensor, root: usize, call: &Call) -> CubeTensor {
    in_place(nccl, "a broadcast", tensor, call, |send, recv| DeviceOperation::Broadcast { send, recv, root })
}

pub(super) fn all_gather(nccl: &Nccl, tensor: CubeTensor, call: &Call) -> CubeTensor {
    let mut shape = tensor.shape();
    shape[0] *= call.group.world_size();
    resized(nccl, "an all-gather", tensor, shape, call, |send, recv| DeviceOperation::AllGather {
        send,
        recv,
    })
}

pub(super) fn reduce_scatter(nccl: &Nccl, tensor: CubeTensor, op: ReduceOp, call: &Call) -> CubeTensor {
    let mut shape = tensor.shape();
    shape[0] /= call.group.world_size();
    resized(nccl, "a reduce-scatter", tensor, shape, call, |send, recv| DeviceOperation::ReduceScatter {
        send,
        recv,
        op,
    })
}

pub(super) fn all_to_all(nccl: &Nccl, tensor: CubeTensor, call: &Call) -> CubeTensor {
    let shape = tensor.shape();
    resized(nccl, "an all-to-all", tensor, shape, call, |send, recv| DeviceOperation::AllToAll { send, recv })
}

/// In the tensor's own memory where nobody else has it, else in new memory: another owner must not see the result.
fn in_place(
    nccl: &Nccl,
    name: &str,
    tensor: CubeTensor,
    call: &Call,
    operation: impl FnOnce(Region, Region) -> DeviceOperation,
) -> CubeTensor {
    if let Err(error) = check(&tensor, name, call) {
        call.fail(error);
        return tensor;
    }
    let send = into_contiguous(tensor);
    if send.meta.num_elements() == 0 {
        return send;
    }
    if send.handle.can_mut() {
        run(nccl, name, &send, None, call, operation);
        return send;
    }
    let recv = memory::empty(&send.client, &send.device, send.shape(), send.dtype);
    if run(nccl, name, &send, Some(&recv), call, operation) { recv } else { send }
}

/// In new memory of another shape.
fn resized(
    nccl: &Nccl,
    name: &str,
    tensor: CubeTensor,
    shape: Shape,
    call: &Call,
    operation: impl FnOnce(Region, Region) -> DeviceOperation,
) -> CubeTensor {
    let recv = memory::empty(&tensor.client, &tensor.device, shape, tensor.dtype);
    if let Err(error) = check(&tensor, name, call) {
        call.fail(error);
        return recv;
    }
    let send = into_contiguous(tensor);
    if send.meta.num_elements() > 0 {
        run(nccl, name, &send, Some(&recv), call, operation);
    }
    recv
}

/// What is refused on every rank alike, before anything has changed.
pub(super) fn check(tensor: &CubeTensor, name: &str, call: &Call) -> Result<()> {
    wire_dtype(tensor.dtype)?;
    // To record an event of the context, or to wait for one, would break the capture.
    if tensor.client.is_capturing() {
        return Err(call.device_error(DeviceError::Capturing { call: name.into() }));
    }
    Ok(())
}

/// Whether it has run; else the call has the error.
fn run(
    nccl: &Nccl,
    name: &str,
    send: &CubeTensor,
    recv: Option<&CubeTensor>,
    call: &Call,
    operation: impl FnOnce(Region, Region) -> DeviceOperation,
) -> bool {
    let planned = match plan(name, send, recv, call, operation) {
        Ok(planned) => planned,
        Err(error) => {
            call.fail_alone(error);
            return false;
        }
    };
    let _site = call.enter();
    let started = call.group.start_on_device(nccl, planned, || memory::fence(&send.client));
    let wait = |work: DeviceWork| if call.is_final() { work.wait_for_end() } else { work.wait() };
    match started.and_then(wait) {
        Ok(()) => true,
        Err(error) => {
            call.fail(error);
            false
        }
    }
}

fn plan(
    name: &str,
    send: &CubeTensor,
    recv: Option<&CubeTensor>,
    call: &Call,
    operation: impl FnOnce(Region, Region) -> DeviceOperation,
) -> Result<Planned> {
    let mut pins = Pins::new();
    let regions = match recv {
        Some(recv) => memory::pin_source(send, name, &mut pins)
            .and_then(|source| Ok((source, memory::pin(recv, name, &mut pins)?))),
        None => memory::pin(send, name, &mut pins).map(|both| (both, both)),
    };
    let (source, target) = regions.map_err(|error| call.device_error(error))?;
    let dtype = wire_dtype(send.dtype)?;
    Ok(Planned { operation: operation(source, target), dtype, keep: Box::new(pins) })
}
