//! The memory of a tensor on a GPU: its address, kept in place for as long as NCCL needs it.

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    CubeDevice,
    cubecl::{
        // The trait has no other name outside of CubeCL; burn is pinned, and so is it.
        __private::Runtime,
        client::Client,
        cuda::CudaRuntime,
        future::block_on,
        server::{IoError, ServerError},
    },
    tensor::CubeTensor,
};

use super::cuda_ordinal;
use crate::{
    device_error::DeviceError,
    transport::nccl::{Fence, Region},
};

/// The server that owns the memory of CUDA tensors. Its module is private; the runtime names it.
type CudaServer = <CudaRuntime as Runtime>::Server;

/// What keeps the memory of tensors where it is and out of other hands.
pub(super) type Pins = Vec<Box<dyn std::any::Any + Send>>;

/// A tensor with contiguous elements that nothing has been written to.
pub(super) fn empty(client: &Client, device: &CubeDevice, shape: Shape, dtype: DType) -> CubeTensor {
    let handle = client.empty(shape.num_elements() * dtype.size());
    CubeTensor::new_contiguous(client.clone(), device.clone(), shape, handle, dtype)
}

/// Where the elements of a contiguous tensor lie that a collective reads. They stay there while what is added to `pins`
/// lives, and nobody writes to them: its memory may be that of a tensor with other owners, such as a gradient that goes on to
/// other layers, and CubeCL lets the last owner of a memory write in place.
///
/// # Errors
/// As [`pin`].
pub(super) fn pin_source(tensor: &CubeTensor, purpose: &str, pins: &mut Pins) -> Result<Region, DeviceError> {
    let region = pin(tensor, purpose, pins)?;
    pins.push(Box::new(tensor.handle.clone()));
    Ok(region)
}

/// Where the elements of a contiguous tensor lie. They stay there while what is added to `pins` lives.
///
/// CubeCL moves its allocations about, so an address is good for nothing without its pin. The call returns when all that
/// this thread has asked of the device before has been handed to the driver; it does not wait for the device.
///
/// # Errors
/// Where the memory could not be had, or an earlier operation has failed to write it.
pub(super) fn pin(tensor: &CubeTensor, purpose: &str, pins: &mut Pins) -> Result<Region, DeviceError> {
    let len_bytes = tensor.meta.num_elements() * tensor.dtype.size();
    let resource = tensor
        .client
        .get_resource::<CudaServer>(tensor.handle.clone())
        .map_err(|error| failure(&error, tensor, len_bytes, purpose))?;
    // Its address is that of the part of the allocation which the handle's offsets leave.
    let (address, size) = (resource.resource().ptr, resource.resource().size);
    if size < len_bytes as u64 {
        let reason = format!("it has {size} bytes, and the elements need {len_bytes}");
        return Err(DeviceError::Memory { reason });
    }
    pins.push(Box::new(resource));
    Ok(Region { address, len_bytes })
}

/// Runs what asks for the memory of many tensors where each answer is at hand: on the thread of the device, which would
/// otherwise be gone to and waited for once a tensor.
///
/// # Errors
/// Those of `ask`, and where that thread is gone.
pub(super) fn at_once<T: Send + 'static>(
    client: &Client,
    ask: impl FnOnce() -> Result<T, DeviceError> + Send,
) -> Result<T, DeviceError> {
    client.exclusive(ask).unwrap_or_else(|error| Err(DeviceError::Memory { reason: first_line(&error) }))
}

/// What the host can wait for until the device has done all that this thread has asked of it so far. The point is taken now.
pub(super) fn fence(client: &Client) -> Fence {
    let reached = client.sync();
    Box::new(move || block_on(reached).map_err(|error| first_line(&error)))
}

fn failure(error: &ServerError, tensor: &CubeTensor, bytes: usize, purpose: &str) -> DeviceError {
    if is_no_memory(error) {
        let ordinal = cuda_ordinal(&tensor.device).unwrap_or_default();
        DeviceError::OutOfMemory { ordinal, bytes, purpose: purpose.into() }
    } else {
        DeviceError::Memory { reason: first_line(error) }
    }
}

/// Whether a root of the error is that the device had no memory left. CubeCL allocates later than it is asked to, and tells
/// it when the memory is used.
fn is_no_memory(error: &ServerError) -> bool {
    match error {
        ServerError::Io(error) => {
            matches!(error, IoError::OutOfMemory { .. } | IoError::BufferTooBig { .. })
        }
        ServerError::Unwritten { root, .. } => is_no_memory(root),
        ServerError::Several { errors, .. } => errors.iter().any(is_no_memory),
        _ => false,
    }
}

/// CubeCL's texts end in a backtrace, which a message to other ranks has no room for.
fn first_line(error: &ServerError) -> String {
    if let ServerError::Unwritten { root, .. } = error {
        return format!("what should have written it failed: {}", first_line(root));
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Backtrace"));
    lines.filter(|line| !line.is_empty() && *line != "Caused by:").collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwritten(root: ServerError) -> ServerError {
        let (root, chain) = (Box::new(root), Vec::new());
        ServerError::Unwritten { failure: 1, claimed: 1, chain, root, backtrace: Default::default() }
    }

    #[test]
    fn memory_that_a_device_did_not_have_is_told_from_other_failures_of_earlier_work() {
        let io = IoError::OutOfMemory { size: 64, backtrace: Default::default() };
        let no_memory = unwritten(ServerError::Io(io));
        let other = ServerError::Generic { reason: "a kernel failed".into(), backtrace: Default::default() };
        assert!(is_no_memory(&no_memory));
        assert!(!is_no_memory(&unwritten(other.clone())));
        let both = ServerError::Several { errors: vec![other, no_memory], backtrace: Default::default() };
        assert!(is_no_memory(&both));
    }

    #[test]
    fn the_text_of_a_failure_names_its_cause_without_a_backtrace() {
        let backtrace = Default::default();
        let text =
            first_line(&unwritten(ServerError::Generic { reason: "a kernel failed".into(), backtrace }));
        assert!(
            text.starts_with("what should have written it failed") && text.ends_with("a kernel failed"),
            "{text}"
        );
    }
}
