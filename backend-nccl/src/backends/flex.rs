//! Flex: tensors lie in host memory, so gradients are read and scaled where they are.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bytes, DType, Element, FloatDType, TensorData};
use burn_flex::{FlexTensor, Layout};

use super::host;
use crate::gradient_kernels::{self as kernels, Real};
use crate::hook::GradientHook;
use crate::ops::{CollectiveBackend, GradientNorm};
use crate::strided::{self, Strided};

impl CollectiveBackend for Flex {
    fn deliver_gradient(gradient: FloatTensor<Self>, hook: GradientHook) -> FloatTensor<Self> {
        let dtype = gradient.dtype();
        let strides: Option<Vec<usize>> =
            gradient.layout().strides().iter().map(|&stride| usize::try_from(stride).ok()).collect();
        match strides {
            Some(strides) => {
                let layout = gradient.layout();
                let strided =
                    Strided { shape: layout.shape(), strides: &strides, offset: layout.start_offset() };
                hook.deliver(dtype, layout.num_elements(), &|target| {
                    strided::copy(gradient.bytes(), strided, dtype.size(), target);
                });
            }
            // Only a flipped view has negative strides.
            None => drop(host::deliver_gradient::<Self>(gradient.clone(), &hook)),
        }
        gradient
    }

    fn scale_gradient(gradient: FloatTensor<Self>, factor: f32) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (scaled, finite) = match gradient.dtype() {
            DType::F64 => scale_gradient::<f64>(gradient, factor.into()),
            DType::F32 => scale_gradient::<f32>(gradient, factor),
            // Half precision has no kernel; the sum is as exact in f32.
            _ => {
                let scaled = Self::float_mul_scalar(gradient, factor.into());
                let wide = Self::float_cast(scaled.clone(), FloatDType::F32);
                (scaled, scale_gradient::<f32>(wide, 1.0).1)
            }
        };
        (scaled, number(if finite { 0.0 } else { f32::NAN }))
    }

    fn gradient_norm(gradient: FloatTensor<Self>, norm: GradientNorm) -> FloatTensor<Self> {
        number(match gradient.dtype() {
            DType::F64 => gradient_norm::<f64>(&gradient, norm),
            DType::F32 => gradient_norm::<f32>(&gradient, norm),
            _ => gradient_norm::<f32>(&Self::float_cast(gradient, FloatDType::F32), norm),
        } as f32)
    }
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

/// Whether the view covers each element of its storage exactly once, in whatever order: then what is done to each
/// element of the storage is done to each of the view. A zero stride would visit one element often and skip others.
fn is_dense(tensor: &FlexTensor) -> bool {
    let layout = tensor.layout();
    let overlaps =
        layout.shape().iter().zip(layout.strides()).any(|(&size, &stride)| size > 1 && stride == 0);
    !overlaps && tensor.bytes().len() == layout.num_elements() * tensor.dtype().size()
}

fn gradient_norm<T: Real + Element>(gradient: &FlexTensor, norm: GradientNorm) -> f64 {
    if is_dense(gradient) {
        return kernels::norm(gradient.storage::<T>(), norm);
    }
    let gradient = gradient.to_contiguous();
    kernels::norm(gradient.as_slice::<T>().expect("it is contiguous"), norm)
}
