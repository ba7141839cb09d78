//! The local parts of a training batch norm, composed of a backend's own operations: what a backend without kernels
//! of its own runs. Per-channel values are `[channels]` in the statistics' type, f64 for f64 input and f32 for all
//! other.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape};

/// Mean and sum of squared deviations of each channel; zeros for an empty `x`.
pub(crate) fn statistics<B: Backend>(x: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
    if x.shape().num_elements() == 0 {
        return (zeros::<B>(&x), zeros::<B>(&x));
    }
    let rows = by_channel::<B>(widen::<B>(x));
    let mean = B::float_mean_dim(rows.clone(), 1);
    let centered = B::float_sub(rows, mean.clone());
    let squares = B::float_sum_dim(B::float_mul(centered.clone(), centered), 1);
    (flat::<B>(mean), flat::<B>(squares))
}

/// `(x - mean) scale + shift`, in the type of `x`.
///
/// The mean is subtracted first: folded into the shift, it would cancel against `x` after both were rounded.
pub(crate) fn normalize<B: Backend>(
    x: FloatTensor<B>,
    mean: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
) -> FloatTensor<B> {
    let (dtype, rank) = (x.dtype(), x.rank());
    let centered = B::float_sub(widen::<B>(x), along::<B>(mean, rank));
    let output = B::float_add(B::float_mul(centered, along::<B>(scale, rank)), along::<B>(shift, rank));
    cast::<B>(output, dtype)
}

/// `Σ dy` and `Σ dy (x - mean)` of each channel; zeros for an empty `x`.
pub(crate) fn gradient_sums<B: Backend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
    mean: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    if x.shape().num_elements() == 0 {
        return (zeros::<B>(&x), zeros::<B>(&x));
    }
    let centered = B::float_sub(widen::<B>(x.clone()), along::<B>(mean, x.rank()));
    let gradient = widen::<B>(gradient);
    let sum = |tensor| flat::<B>(B::float_sum_dim(by_channel::<B>(tensor), 1));
    (sum(gradient.clone()), sum(B::float_mul(gradient, centered)))
}

/// `scale (dy - mean_gradient - (x - mean) slope)`, in the type of `x`.
pub(crate) fn input_gradient<B: Backend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
    [mean, scale, mean_gradient, slope]: [FloatTensor<B>; 4],
) -> FloatTensor<B> {
    let (dtype, rank) = (x.dtype(), x.rank());
    let centered = B::float_sub(widen::<B>(x), along::<B>(mean, rank));
    let gradient = B::float_sub(widen::<B>(gradient), along::<B>(mean_gradient, rank));
    let gradient = B::float_sub(gradient, B::float_mul(centered, along::<B>(slope, rank)));
    cast::<B>(B::float_mul(gradient, along::<B>(scale, rank)), dtype)
}

/// The type in which statistics of tensors of `dtype` are formed.
pub(crate) fn statistics_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

pub(crate) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if tensor.dtype() == dtype { tensor } else { B::float_cast(tensor, FloatDType::from(dtype)) }
}

fn widen<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = statistics_dtype(x.dtype());
    cast::<B>(x, dtype)
}

fn zeros<B: Backend>(x: &FloatTensor<B>) -> FloatTensor<B> {
    let dtype = statistics_dtype(x.dtype());
    B::float_zeros(Shape::new([x.shape()[1]]), &x.device(), dtype.into())
}

/// `[channels, values]` of `[batch, channels, ..]`.
fn by_channel<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let rows = Shape::new([shape[1], shape.num_elements() / shape[1]]);
    B::float_reshape(B::float_swap_dims(tensor, 0, 1), rows)
}

fn flat<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let channels = tensor.shape()[0];
    B::float_reshape(tensor, Shape::new([channels]))
}

/// `[1, channels, 1, ..]` of rank `rank`, to meet the channels of `x`.
fn along<B: Backend>(tensor: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let mut shape = vec![1; rank];
    shape[1] = tensor.shape()[0];
    B::float_reshape(tensor, Shape::from(shape))
}
