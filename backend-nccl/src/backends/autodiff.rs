//! Autodiff over any backend: each collective runs on the inner backend, and its backward runs the adjoint
//! collective. Every rank must take part in the adjoint too, so every rank must differentiate through the result.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};
use burn::tensor::{FloatDType, Slice};

use super::autodiff_batch_norm;
use crate::hook::GradientHook;
use crate::ops::{
    AsyncCall, BatchNormSettings, BucketParts, Call, CollectiveBackend, FlatBucket, GradientNorm, Placement,
    Route,
};
use crate::transport::ReduceOp;

impl<B: CollectiveBackend, C: CheckpointStrategy> CollectiveBackend for Autodiff<B, C> {
    /// Adjoint: with `G = all_reduce_sum(dy)`, sum gives `dx = G`, mean `dx = G / n`, min and max `dx = G` where
    /// this rank holds the extremum (shared equally among ranks that tie), product `dx = G ∏_{j≠rank} x_j`.
    fn group_all_reduce(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let output = B::group_all_reduce(input.clone(), op, call.clone());
        match AllReduce(op).prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let saved = match op {
                    ReduceOp::Sum | ReduceOp::Mean => None,
                    ReduceOp::Min | ReduceOp::Max | ReduceOp::Product => Some((input, output.clone())),
                };
                prep.finish((call.in_backward(), saved), output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    /// Adjoint: `dx = all_reduce_sum(dy)` on the root, zero elsewhere.
    fn group_broadcast(tensor: FloatTensor<Self>, root: usize, call: Call) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let output = B::group_broadcast(input, root, call.clone());
        match Broadcast.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((call.in_backward(), root), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    /// Adjoint: `dx = reduce_scatter_sum(dy)`.
    fn group_all_gather(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let output = B::group_all_gather(input, call.clone());
        match AllGather.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(call.in_backward(), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    /// Adjoint: `dx = all_gather(dy)` for sum, divided by the world size for mean. The other reductions are refused
    /// by [`functions::reduce_scatter`](crate::functions::reduce_scatter) for a tracked tensor.
    fn group_reduce_scatter(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let output = B::group_reduce_scatter(input, op, call.clone());
        match ReduceScatter(op).prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(call.in_backward(), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    /// Adjoint: `dx = all_to_all(dy)`: what was sent comes back.
    fn group_all_to_all(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let output = B::group_all_to_all(input, call.clone());
        match AllToAll.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(call.in_backward(), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn group_placement(tensor: FloatTensor<Self>, call: Call) -> Placement {
        B::group_placement(tensor.into_primitive(), call)
    }

    fn group_route(tensor: FloatTensor<Self>, call: Call) -> Route {
        B::group_route(tensor.into_primitive(), call)
    }

    /// Gradients of gradients stop here: what is averaged takes part in no graph.
    fn group_bucket_start(
        parts: BucketParts<Self>,
        bucket: FlatBucket,
        op: ReduceOp,
        call: AsyncCall,
    ) -> FloatTensor<Self> {
        let parts = parts.0.into_iter().map(|part| part.into_primitive()).collect();
        FloatTensor::<Self>::new(B::group_bucket_start(BucketParts(parts), bucket, op, call))
    }

    fn bucket_parts(flat: FloatTensor<Self>, bucket: FlatBucket) -> Vec<FloatTensor<Self>> {
        B::bucket_parts(flat.into_primitive(), bucket).into_iter().map(FloatTensor::<Self>::new).collect()
    }

    /// Adjoint: the gradient itself, delivered to the hook on its way.
    fn gradient_hook(
        tensor: FloatTensor<Self>,
        lift: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        let (input, guard) = tensor.into_parts();
        let (_, lift_guard) = lift.into_parts();
        // Compute-bound, so that gradient checkpointing never runs the forward again for a hook.
        match Deliver.prepare::<C>([guard, lift_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(hook, input),
            OpsKind::UnTracked(prep) => prep.finish(input),
        }
    }

    fn deliver_gradient(gradient: FloatTensor<Self>, hook: GradientHook) -> FloatTensor<Self> {
        B::deliver_gradient(gradient.primitive().clone(), hook);
        gradient
    }

    /// Adjoint: the gradient of a batch norm over all ranks, with one all-reduce of two sums per channel.
    fn group_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: BatchNormSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, u64) {
        autodiff_batch_norm::record::<B, C>(x, gamma, beta, &settings)
    }

    fn cast_float(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let own = tensor.dtype().into();
        let (input, guard) = tensor.into_parts();
        let output = B::cast_float(input, dtype);
        match CastFloat.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(own, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn scale_gradient(gradient: FloatTensor<Self>, factor: f32) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (scaled, check) = B::scale_gradient(gradient.into_primitive(), factor);
        (FloatTensor::<Self>::new(scaled), FloatTensor::<Self>::new(check))
    }

    fn gradient_norm(gradient: FloatTensor<Self>, norm: GradientNorm) -> FloatTensor<Self> {
        FloatTensor::<Self>::new(B::gradient_norm(gradient.into_primitive(), norm))
    }
}

#[derive(Debug)]
struct CastFloat;

impl<B: CollectiveBackend> Backward<B, 1> for CastFloat {
    /// The type of the input.
    type State = FloatDType;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::cast_float(grad, ops.state));
    }
}

#[derive(Debug)]
struct AllReduce(ReduceOp);

impl<B: CollectiveBackend> Backward<B, 1> for AllReduce {
    /// The call for the adjoint, and input and output where the adjoint needs them.
    type State = (Call, Option<(FloatTensor<B>, FloatTensor<B>)>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (call, saved) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            let op = if self.0 == ReduceOp::Mean { ReduceOp::Mean } else { ReduceOp::Sum };
            let grad = B::group_all_reduce(grad, op, call.clone());
            match (self.0, saved) {
                (ReduceOp::Min | ReduceOp::Max, Some((input, output))) => {
                    let holds = extremum_mask::<B>(input, output);
                    let ties = B::group_all_reduce(holds.clone(), ReduceOp::Sum, call);
                    B::float_div(B::float_mul(grad, holds), ties)
                }
                (ReduceOp::Product, Some((input, _))) => {
                    B::float_mul(grad, product_of_others::<B>(input, call))
                }
                _ => grad,
            }
        });
    }
}

/// One where `input` equals `output` exactly, zero elsewhere.
fn extremum_mask<B: CollectiveBackend>(input: FloatTensor<B>, output: FloatTensor<B>) -> FloatTensor<B> {
    let differs = B::float_sign(B::float_abs(B::float_sub(input, output)));
    B::float_add_scalar(B::float_neg(differs), 1.0.into())
}

/// The product of the other ranks' inputs: dividing the whole product by the own value would fail at zero.
fn product_of_others<B: CollectiveBackend>(input: FloatTensor<B>, call: Call) -> FloatTensor<B> {
    let (rank, world_size) = (call.group.rank(), call.group.world_size());
    let rows = input.shape()[0];
    let gathered = B::group_all_gather(input.clone(), call);
    let ones = B::float_ones(input.shape(), &input.device(), input.dtype().into());
    (0..world_size).filter(|&peer| peer != rank).fold(ones, |product, peer| {
        let part = B::float_slice(gathered.clone(), &[Slice::from(peer * rows..(peer + 1) * rows)]);
        B::float_mul(product, part)
    })
}

#[derive(Debug)]
struct Broadcast;

impl<B: CollectiveBackend> Backward<B, 1> for Broadcast {
    type State = (Call, usize);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (call, root) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            let is_root = call.group.rank() == root;
            let sum = B::group_all_reduce(grad, ReduceOp::Sum, call);
            if is_root { sum } else { B::float_zeros(sum.shape(), &sum.device(), sum.dtype().into()) }
        });
    }
}

#[derive(Debug)]
struct AllToAll;

impl<B: CollectiveBackend> Backward<B, 1> for AllToAll {
    type State = Call;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let call = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::group_all_to_all(grad, call));
    }
}

#[derive(Debug)]
struct AllGather;

impl<B: CollectiveBackend> Backward<B, 1> for AllGather {
    type State = Call;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let call = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::group_reduce_scatter(grad, ReduceOp::Sum, call)
        });
    }
}

#[derive(Debug)]
struct ReduceScatter(ReduceOp);

impl<B: CollectiveBackend> Backward<B, 1> for ReduceScatter {
    type State = Call;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let call = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            let world_size = call.group.world_size() as f64;
            let gathered = B::group_all_gather(grad, call);
            match self.0 {
                ReduceOp::Mean => B::float_div_scalar(gathered, world_size.into()),
                _ => gathered,
            }
        });
    }
}

/// Passes the gradient of the first parent on. The second parent, the lift, is untracked: it only sets the depth
/// at which this step runs.
#[derive(Debug)]
struct Deliver;

impl<B: CollectiveBackend> Backward<B, 2> for Deliver {
    type State = GradientHook;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let [tensor, _] = ops.parents;
        let grad = grads.consume::<B>(&ops.node);
        let ends = ops.state.ends();
        let grad = B::deliver_gradient(grad, ops.state);
        if let Some(tensor) = tensor
            && !ends
        {
            grads.register::<B>(tensor.id, grad);
        }
    }
}
