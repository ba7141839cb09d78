//! Flex: tensors lie in host memory, so gradients are read and handed out where they are, without a copy.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn_flex::{FlexTensor, Layout};

use crate::hook::GradientHook;
use crate::ops::{BucketSlot, CollectiveBackend};

impl CollectiveBackend for Flex {
    fn deliver_gradient(gradient: FloatTensor<Self>, hook: GradientHook) -> FloatTensor<Self> {
        let contiguous = gradient.to_contiguous();
        let size_bytes = contiguous.dtype().size();
        if let Some((start, end)) = contiguous.layout().contiguous_offsets() {
            hook.deliver(&contiguous.bytes()[start * size_bytes..end * size_bytes], contiguous.dtype());
        }
        gradient
    }

    fn gradient_from_bucket(like: FloatTensor<Self>, slot: BucketSlot) -> FloatTensor<Self> {
        let shape = like.layout().shape().clone();
        let dtype = like.dtype();
        let strides = Layout::contiguous(shape.clone()).strides().to_vec();
        let layout = Layout::new(shape, strides, slot.offset_bytes / dtype.size());
        FlexTensor::from_arc(slot.bucket, layout, dtype)
    }
}
