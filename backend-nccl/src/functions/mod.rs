//! Collectives on [`Tensor<D>`](burn::tensor::Tensor), differentiable on an autodiff device.
//!
//! Every rank of the group must make the same call, in the same order, with the same shapes: order is the
//! contract, and the group checks it in debug builds. Differentiating through a result is a collective as well
//! (its adjoint), so either all ranks call `backward` or none. An error inside a backward pass cannot be returned
//! from it: it ends the group, and the next call on the group returns it.
//!
//! Tensors on CUDA devices move by NCCL, from device to device, and a call returns when the GPU is done with it, so that an
//! `Ok` is one; the ranks' tensors must then all be on GPUs. Those of other backends move by the group's host transport, and
//! so do messages ([`send`], [`recv`], [`gather`], [`scatter`]) of every backend.
//!
//! Source: `torch.distributed.nn.functional`, with the exact adjoints for minimum, maximum and product.

mod messages;

pub use messages::{gather, recv, scatter, send};

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::Tensor;

use crate::backends;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::ops::{Call, CollectiveBackend};
use crate::site;
use crate::transport::ReduceOp;

/// Reduces `tensor` over all ranks: `y = op(x_0, …, x_{n-1})`, the same on every rank.
///
/// # Shapes
/// Input and output `[..]`, equal on all ranks.
///
/// # Errors
/// What [`ProcessGroup::all_reduce`] returns, and [`Error::UnsupportedDType`].
#[track_caller]
pub fn all_reduce<const D: usize>(
    tensor: Tensor<D>,
    op: ReduceOp,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    run(tensor, group, |tensor, call| Dispatch::group_all_reduce(tensor, op, call))
}

/// Replaces `tensor` by the one of the `root` rank.
///
/// # Shapes
/// Input and output `[..]`, equal on all ranks.
///
/// # Errors
/// What [`ProcessGroup::broadcast`] returns, and [`Error::UnsupportedDType`].
#[track_caller]
pub fn broadcast<const D: usize>(tensor: Tensor<D>, root: usize, group: &ProcessGroup) -> Result<Tensor<D>> {
    run(tensor, group, |tensor, call| Dispatch::group_broadcast(tensor, root, call))
}

/// Concatenates the tensors of all ranks along dimension 0, in rank order.
///
/// # Shapes
/// Input `[rows, ..]`, equal on all ranks; output `[world_size * rows, ..]`.
///
/// # Errors
/// What [`ProcessGroup::all_gather`] returns, and [`Error::UnsupportedDType`].
#[track_caller]
pub fn all_gather<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup) -> Result<Tensor<D>> {
    run(tensor, group, Dispatch::group_all_gather)
}

/// Reduces over all ranks and returns this rank's part of dimension 0.
///
/// # Shapes
/// Input `[world_size * rows, ..]`, equal on all ranks; output `[rows, ..]`.
///
/// # Errors
/// What [`ProcessGroup::reduce_scatter`] returns; [`Error::UnevenShards`] where the world size does not divide
/// dimension 0; [`Error::NotDifferentiable`] for min, max and product of a tensor that requires gradients.
#[track_caller]
pub fn reduce_scatter<const D: usize>(
    tensor: Tensor<D>,
    op: ReduceOp,
    group: &ProcessGroup,
) -> Result<Tensor<D>> {
    let (rows, world_size) = (tensor.dims()[0], group.world_size());
    check_shares("reduce_scatter", rows, world_size)?;
    if tensor.is_tracked() && !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Err(Error::NotDifferentiable { op: "reduce_scatter", reduce: op });
    }
    run(tensor, group, |tensor, call| Dispatch::group_reduce_scatter(tensor, op, call))
}

/// Gives part `i` of dimension 0 to rank `i` and concatenates what the ranks give this one, in rank order: a transpose
/// of ranks and parts.
///
/// # Shapes
/// Input and output `[world_size * rows, ..]`, equal on all ranks.
///
/// # Errors
/// What [`ProcessGroup::all_to_all`] returns; [`Error::UnevenShards`] where the world size does not divide dimension 0.
#[track_caller]
pub fn all_to_all<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup) -> Result<Tensor<D>> {
    check_shares("all_to_all", tensor.dims()[0], group.world_size())?;
    run(tensor, group, Dispatch::group_all_to_all)
}

fn check_shares(op: &'static str, rows: usize, world_size: usize) -> Result<()> {
    if rows.is_multiple_of(world_size) { Ok(()) } else { Err(Error::UnevenShards { op, rows, world_size }) }
}

#[track_caller]
fn run<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
    op: impl FnOnce(DispatchTensor, Call) -> DispatchTensor,
) -> Result<Tensor<D>> {
    let _site = site::enter();
    backends::check()?;
    let call = Call::new(group).awaited();
    let output = op(tensor.into_dispatch(), call.clone());
    call.result()?;
    Ok(Tensor::from_dispatch(output))
}
