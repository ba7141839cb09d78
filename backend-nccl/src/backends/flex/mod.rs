//! Flex: tensors lie in host memory, so gradients are read and scaled where they are.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::host;
use crate::hook::GradientHook;
use crate::ops::{CollectiveBackend, GradientNorm};
use crate::strided::{self, Strided};

mod batch_norm;
mod gradients;

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
        gradients::scale(gradient, factor)
    }

    fn gradient_norm(gradient: FloatTensor<Self>, norm: GradientNorm) -> FloatTensor<Self> {
        gradients::norm(gradient, norm)
    }

    fn batch_norm_statistics(x: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        batch_norm::statistics(x)
    }

    fn batch_norm_normalize(
        x: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        batch_norm::normalize(x, mean, scale, shift)
    }

    fn batch_norm_gradient_sums(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        mean: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        batch_norm::gradient_sums(x, gradient, mean)
    }

    fn batch_norm_input_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        mean_gradient: FloatTensor<Self>,
        slope: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        batch_norm::input_gradient(x, gradient, [mean, scale, mean_gradient, slope])
    }
}
