//! Functions whose result is not on every rank, and which are therefore not differentiable: a rank without a result has
//! nothing to start a backward pass from, while the others would wait for its part of the adjoint.

use burn::tensor::{Device, Tensor, TensorData};

use crate::dtype::wire_dtype;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::transport::DType;

/// Concatenates the tensors of all ranks along dimension 0 on rank `root`, in rank order; `None` on the others.
///
/// # Shapes
/// Input `[rows, ..]`, equal on all ranks; output `[world_size * rows, ..]`.
///
/// # Errors
/// What [`ProcessGroup::gather`] returns; [`Error::CutsGraph`] for a tensor that requires gradients;
/// [`Error::UnsupportedDType`].
#[track_caller]
pub fn gather<const D: usize>(
    tensor: Tensor<D>,
    root: usize,
    group: &ProcessGroup,
) -> Result<Option<Tensor<D>>> {
    let mut shape = tensor.shape();
    shape[0] *= group.world_size();
    let (data, device, dtype) = read("gather", tensor)?;
    if group.rank() != root {
        group.gather(data.as_bytes(), None, dtype, root)?;
        return Ok(None);
    }
    let burn_dtype = data.dtype();
    let mut received = TensorData::full_dtype(shape.clone(), 0, burn_dtype).into_bytes();
    group.gather(data.as_bytes(), Some(&mut received), dtype, root)?;
    Ok(Some(write(TensorData::from_bytes(received, shape, burn_dtype), &device)))
}

/// Gives each rank its part of dimension 0 of the `tensor` of rank `root`, in rank order. The other ranks give a tensor
/// of the shape and type of their part, whose values do not matter.
///
/// # Shapes
/// Input `[world_size * rows, ..]` on the root and `[rows, ..]` elsewhere; output `[rows, ..]`.
///
/// # Errors
/// What [`ProcessGroup::scatter`] returns; [`Error::UnevenShards`] where the world size does not divide dimension 0 of
/// the root's tensor; [`Error::CutsGraph`] and [`Error::UnsupportedDType`] as for [`gather`].
#[track_caller]
pub fn scatter<const D: usize>(tensor: Tensor<D>, root: usize, group: &ProcessGroup) -> Result<Tensor<D>> {
    let (mut shape, world_size, is_root) = (tensor.shape(), group.world_size(), group.rank() == root);
    if is_root {
        super::check_shares("scatter", shape[0], world_size)?;
        shape[0] /= world_size;
    }
    let (data, device, dtype) = read("scatter", tensor)?;
    let burn_dtype = data.dtype();
    let mut received = TensorData::full_dtype(shape.clone(), 0, burn_dtype).into_bytes();
    group.scatter(is_root.then_some(data.as_bytes()), &mut received, dtype, root)?;
    Ok(write(TensorData::from_bytes(received, shape, burn_dtype), &device))
}

/// Sends `tensor` to rank `to`, which calls [`recv`].
///
/// # Errors
/// What [`ProcessGroup::send`] returns; [`Error::CutsGraph`] and [`Error::UnsupportedDType`] as for [`gather`].
#[track_caller]
pub fn send<const D: usize>(tensor: Tensor<D>, to: usize, group: &ProcessGroup) -> Result<()> {
    let (data, _, dtype) = read("send", tensor)?;
    group.send(data.as_bytes(), dtype, to)
}

/// Receives the tensor that rank `from` [`send`]s, of the shape and type of `like`, on its device.
///
/// # Errors
/// What [`ProcessGroup::recv`] returns; [`Error::CutsGraph`] and [`Error::UnsupportedDType`] as for [`gather`].
#[track_caller]
pub fn recv<const D: usize>(like: Tensor<D>, from: usize, group: &ProcessGroup) -> Result<Tensor<D>> {
    let (data, device, dtype) = read("recv", like)?;
    let (mut bytes, shape, burn_dtype) = data.into_parts();
    group.recv(&mut bytes, dtype, from)?;
    Ok(write(TensorData::from_bytes(bytes, shape, burn_dtype), &device))
}

fn read<const D: usize>(op: &'static str, tensor: Tensor<D>) -> Result<(TensorData, Device, DType)> {
    if tensor.is_tracked() {
        return Err(Error::CutsGraph { op });
    }
    let device = tensor.device();
    let dtype = wire_dtype(tensor.dtype())?;
    let data = tensor.try_into_data().map_err(|error| Error::TensorRead { cause: error.to_string() })?;
    Ok((data, device, dtype))
}

fn write<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}
