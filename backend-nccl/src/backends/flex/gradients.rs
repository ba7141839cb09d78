//! Scaling and norms of gradients in one pass over memory.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Bytes, DType, Element, FloatDType, TensorData};
use burn_flex::{FlexTensor, Layout};

use super::is_dense;
use crate::gradient_kernels::{self as kernels, Real};
use crate::ops::GradientNorm;

/// `gradient * factor`, and 0 where all of it is finite, else NaN.
pub(super) fn scale(gradient: FlexTensor, factor: f32) -> (FlexTensor, FlexTensor) {
    let (scaled, finite) = match gradient.dtype() {
        DType::F64 => scale_gradient::<f64>(gradient, factor.into()),
        DType::F32 => scale_gradient::<f32>(gradient, factor),
        // Half precision has no kernel; the sum is as exact in f32.
        _ => {
            let scaled = Flex::float_mul_scalar(gradient, factor.into());
            let wide = Flex::float_cast(scaled.clone(), FloatDType::F32);
            (scaled, scale_gradient::<f32>(wide, 1.0).1)
        }
    };
    (scaled, number(if finite { 0.0 } else { f32::NAN }))
}

/// The norm of all elements of `gradient`.
pub(super) fn norm(gradient: FlexTensor, norm: GradientNorm) -> FlexTensor {
    number(match gradient.dtype() {
        DType::F64 => gradient_norm::<f64>(&gradient, norm),
        DType::F32 => gradient_norm::<f32>(&gradient, norm),
        _ => gradient_norm::<f32>(&Flex::float_cast(gradient, FloatDType::F32), norm),
    } as f32)
}

fn number(value: f32) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(vec![value], [1]))
}

/// In place where `gradient` is the only owner of its memory, or else into new memory of the same layout.
fn scale_gradient<T: Real + Element>(mut gradient: FlexTensor, factor: T) -> (FlexTensor, bool) {
    let (layout, dtype) = (gradient.layout().clone(), gradient.dtype());
    if is_dense(&gradient) {
        if factor == T::ONE {
            let finite = kernels::all_finite(gradient.storage::<T>());
            return (gradient, finite);
        }
        if let Some(values) = gradient.try_storage_mut::<T>() {
            let finite = kernels::scale(values, factor);
            return (gradient, finite);
        }
        let (scaled, finite) = kernels::scaled(gradient.storage::<T>(), factor);
        return (FlexTensor::new(Bytes::from_elems(scaled), layout, dtype), finite);
    }
    // A part of a larger storage, which others may see.
    let gradient = gradient.to_contiguous();
    let values = gradient.as_slice::<T>().expect("it is contiguous");
    if factor == T::ONE {
        let finite = kernels::all_finite(values);
        return (gradient, finite);
    }
    let (scaled, finite) = kernels::scaled(values, factor);
    let layout = Layout::contiguous(layout.shape().clone());
    (FlexTensor::new(Bytes::from_elems(scaled), layout, dtype), finite)
}

fn gradient_norm<T: Real + Element>(gradient: &FlexTensor, norm: GradientNorm) -> f64 {
    if is_dense(gradient) {
        return kernels::norm(gradient.storage::<T>(), norm);
    }
    let gradient = gradient.to_contiguous();
    kernels::norm(gradient.as_slice::<T>().expect("it is contiguous"), norm)
}
