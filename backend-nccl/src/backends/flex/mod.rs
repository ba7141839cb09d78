//! Flex: tensors lie in host memory, so gradients are read and scaled where they are.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{FloatDType, Tensor};
use burn_flex::FlexTensor;

use super::host;
use crate::error::Result;
use crate::hook::{GradientForm, GradientHook};
use crate::ops::{CollectiveBackend, GradientNorm};
use crate::strided::{self, Strided};

mod batch_norm;
mod cast;
mod gradients;

impl CollectiveBackend for Flex {
    fn deliver_gradient(gradient: FloatTensor<Self>, hook: GradientHook) -> FloatTensor<Self> {
        let (dtype, elements) = (gradient.dtype(), gradient.layout().num_elements());
        let strides: Option<Vec<usize>> =
            gradient.layout().strides().iter().map(|&stride| usize::try_from(stride).ok()).collect();
        match strides {
            Some(strides) => hook.deliver(dtype, elements, &InPlace { gradient: &gradient, strides }),
            // Only a flipped view has negative strides.
            None => drop(host::deliver_gradient::<Self>(gradient.clone(), &hook)),
        }
        gradient
    }

    fn cast_float(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        cast::cast(tensor, dtype)
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

/// A gradient that is copied from where it lies.
struct InPlace<'a> {
    gradient: &'a FlexTensor,
    strides: Vec<usize>,
}

impl GradientForm for InPlace<'_> {
    fn write(&self, target: &mut [u8]) -> Result<()> {
        let layout = self.gradient.layout();
        let strided =
            Strided { shape: layout.shape(), strides: &self.strides, offset: layout.start_offset() };
        strided::copy(self.gradient.bytes(), strided, self.gradient.dtype().size(), target);
        Ok(())
    }

    fn tensor(&self) -> Option<Tensor<1>> {
        super::flat_tensor::<Flex>(self.gradient.clone())
    }
}

/// Whether the view covers each element of its storage exactly once, in whatever order: then what is done to each
/// element of the storage is done to each of the view. A zero stride would visit one element often and skip others.
fn is_dense(tensor: &FlexTensor) -> bool {
    let layout = tensor.layout();
    let overlaps =
        layout.shape().iter().zip(layout.strides()).any(|(&size, &stride)| size > 1 && stride == 0);
    !overlaps && tensor.bytes().len() == layout.num_elements() * tensor.dtype().size()
}
