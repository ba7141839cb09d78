//! Casts: the two that a forward pass under the policy writes itself, and what they and the policy run on.

use burn::backend::Dispatch;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::ops::CollectiveBackend;

/// Half to f32, differentiable; f32 and f64 as they are. For what must not run in half: softmax, exponentials,
/// logarithms, powers, long sums and means, losses, norms.
///
/// # Shapes
/// Input and output `[..]`.
pub fn widen<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => cast_to(tensor, FloatDType::F32),
        _ => tensor,
    }
}

/// Casts `tensor` to the element type of `reference`, differentiable; as it is where the types are equal. A layer that
/// casts its input to its weight's type works under every policy.
///
/// # Shapes
/// Input and output `[..]`, whatever the shape of `reference`.
pub fn match_dtype<const D: usize, const E: usize>(tensor: Tensor<D>, reference: &Tensor<E>) -> Tensor<D> {
    let dtype = reference.dtype();
    if tensor.dtype() == dtype { tensor } else { cast_to(tensor, FloatDType::from(dtype)) }
}

/// The elements of `tensor` in `dtype`, differentiable.
pub(crate) fn cast_to<const D: usize>(tensor: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::cast_float(tensor.into_dispatch(), dtype))
}
