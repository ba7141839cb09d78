//! The backend extension: what every backend must offer so that tensors can take part in collectives.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::FloatDType;

use crate::backends::host;
use crate::batch_norm::{self, composed};
pub use crate::call::{AsyncCall, Call};
pub use crate::flat_bucket::{BucketParts, FlatBucket};
use crate::hook::GradientHook;
pub use crate::placement::{Placement, Route};
use crate::transport::ReduceOp;

/// How a training batch norm normalises.
#[derive(Clone, Debug)]
pub struct BatchNormSettings {
    /// What is added to the variance under the root.
    pub epsilon: f64,
    /// The ranks whose batches are normalised together; `None` for this process alone.
    pub call: Option<Call>,
}

/// A norm of a gradient `g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum GradientNorm {
    /// `Σ |g|`.
    L1,
    /// `√Σ g²`.
    L2,
    /// `max |g|`.
    Max,
}

/// The collective operations of a backend, differentiable where the backend is.
///
/// This is Burn's "backend decorator" for distributed training: each backend implements the trait,
/// `Autodiff<B, C>` implements it on top of any `B` that does, and `Dispatch`, which every
/// [`Tensor`](burn::tensor::Tensor) runs on, routes to the backend of the tensor at hand.
///
/// The default bodies take the **host path**: read the tensor, run the group's transport on the bytes,
/// make a tensor of the result. A backend overrides a method only where it can do better.
///
/// The names carry a `group_` because Burn's own trait already has an `all_reduce`, between devices of one process.
/// Users call [`functions`](crate::functions); these methods do not return errors but leave them in [`Call`].
#[backend_extension(
    Cube: cfg(feature = "cuda"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff,
)]
pub trait CollectiveBackend: Backend {
    /// Reduces `tensor` over all ranks; every rank gets the result, of the same shape.
    fn group_all_reduce(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        host::all_reduce::<Self>(tensor, op, &call)
    }

    /// Replaces `tensor` by the `root` rank's.
    fn group_broadcast(tensor: FloatTensor<Self>, root: usize, call: Call) -> FloatTensor<Self> {
        host::broadcast::<Self>(tensor, root, &call)
    }

    /// Concatenates the tensors of all ranks along dimension 0, in rank order.
    fn group_all_gather(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        host::all_gather::<Self>(tensor, &call)
    }

    /// Reduces over all ranks and leaves each rank its part of dimension 0, which the world size divides.
    fn group_reduce_scatter(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        host::reduce_scatter::<Self>(tensor, op, &call)
    }

    /// Gives part `i` of dimension 0 to rank `i` and concatenates what the ranks give this one, in rank order. The world
    /// size divides dimension 0.
    fn group_all_to_all(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        host::all_to_all::<Self>(tensor, &call)
    }

    /// Where `tensor` lies, as far as it decides what carries it. Nothing is exchanged.
    fn group_placement(tensor: FloatTensor<Self>, call: Call) -> Placement {
        let _ = (tensor, call);
        Placement::Host
    }

    /// What carries `tensor` in the group. The first call for a GPU is a collective: it makes NCCL's communicator.
    fn group_route(tensor: FloatTensor<Self>, call: Call) -> Route {
        let _ = (tensor, call);
        Route::Host
    }

    /// Starts to reduce gradients of all ranks in one flat tensor: copies each part, of one dimension, to its range of
    /// `bucket`, zeros what is between them, and reduces the whole. What comes back, `[bucket.len]`, holds the result once
    /// [`AsyncCall::wait`] has returned, and must not be used before. All parts have one type. There is at least one.
    fn group_bucket_start(
        #[extension_type] parts: BucketParts<Self>,
        bucket: FlatBucket,
        op: ReduceOp,
        call: AsyncCall,
    ) -> FloatTensor<Self> {
        host::reduce_bucket::<Self>(parts.0, &bucket, op, &call)
    }

    /// The parts of `flat`, each of one dimension, where the backend can as views.
    fn bucket_parts(flat: FloatTensor<Self>, bucket: FlatBucket) -> Vec<FloatTensor<Self>> {
        host::bucket_parts::<Self>(&flat, &bucket)
    }

    /// Returns `tensor` unchanged; its gradient will pass through `hook` in the backward pass.
    ///
    /// `lift` is an untracked tensor whose place in the graph decides when the hook fires (see
    /// [`ddp`](crate::ddp)). Without autodiff there is no gradient and nothing to do.
    fn gradient_hook(
        tensor: FloatTensor<Self>,
        lift: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        let _ = (lift, hook);
        tensor
    }

    /// Hands `gradient` to `hook` and returns it.
    fn deliver_gradient(gradient: FloatTensor<Self>, hook: GradientHook) -> FloatTensor<Self> {
        host::deliver_gradient::<Self>(gradient, &hook)
    }

    /// Batch norm with the statistics of the batch: those of all ranks where `settings` name a group.
    ///
    /// Returns the output, in the type of `x`; the mean and the biased variance of each channel, detached, in f32 (f64
    /// for f64 input); and the number of values per channel, over all ranks. `x` is `[batch, channels, ..]`, `gamma` and
    /// `beta` are `[channels]` of any float type.
    fn group_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: BatchNormSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, u64) {
        let result = batch_norm::forward::<Self>(x, gamma, beta, &settings);
        (result.output, result.mean, result.variance, result.batch.count)
    }

    /// Mean and sum of squared deviations of each channel of `x`, `[channels]` in the statistics' type: f64 for f64
    /// input, else f32. Zeros for an empty `x`.
    fn batch_norm_statistics(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed::statistics::<Self>(x)
    }

    /// `(x - mean) scale + shift` in the type of `x`; the others are `[channels]` in the statistics' type.
    fn batch_norm_normalize(
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        composed::normalize::<Self>(x, mean, scale, shift)
    }

    /// `Σ dy` and `Σ dy (x - mean)` of each channel, `[channels]` in the statistics' type. Zeros for an empty `x`.
    fn batch_norm_gradient_sums(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        mean: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed::gradient_sums::<Self>(x, gradient, mean)
    }

    /// `scale (dy - mean_gradient - (x - mean) slope)` in the type of `x`; the others are `[channels]` in the statistics'
    /// type.
    fn batch_norm_input_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        mean_gradient: FloatTensor<Self>,
        slope: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        composed::input_gradient::<Self>(x, gradient, [mean, scale, mean_gradient, slope])
    }

    /// The elements of `tensor` in `dtype`. Adjoint: the gradient in the type of `tensor`.
    fn cast_float(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::float_cast(tensor, dtype)
    }

    /// `gradient * factor`, and an f32 tensor of one element that is 0 if every element of the product is finite and
    /// anything else if not. Nothing is read to the host.
    fn scale_gradient(gradient: FloatTensor<Self>, factor: f32) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let scaled = match factor {
            1.0 => gradient,
            _ => Self::float_mul_scalar(gradient, factor.into()),
        };
        // 0 for every finite number, NaN for infinities and NaN.
        let zeros = Self::float_mul_scalar(scaled.clone(), 0.0.into());
        (scaled, Self::float_cast(Self::float_sum(zeros), FloatDType::F32))
    }

    /// The norm of `gradient` as an f32 tensor of one element, NaN if any element is.
    fn gradient_norm(gradient: FloatTensor<Self>, norm: GradientNorm) -> FloatTensor<Self> {
        let gradient = Self::float_cast(gradient, FloatDType::F32);
        match norm {
            GradientNorm::L1 => Self::float_sum(Self::float_abs(gradient)),
            GradientNorm::L2 => {
                Self::float_sqrt(Self::float_sum(Self::float_mul(gradient.clone(), gradient)))
            }
            GradientNorm::Max => {
                // A backend's maximum may pass NaN by; the sum of zeros does not.
                let zeros = Self::float_sum(Self::float_mul_scalar(gradient.clone(), 0.0.into()));
                Self::float_add(Self::float_max_abs(gradient), zeros)
            }
        }
    }
}
