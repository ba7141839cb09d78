//! Gradients that are reduced together in one flat tensor.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType,
};

/// Where the parts of a flat tensor lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatBucket {
    /// The range of each part, in elements, ascending.
    pub ranges: Vec<Range<usize>>,
    /// The length of the tensor, in elements.
    pub len: usize,
}

/// Tensors of one dimension on one backend, device and type.
#[derive(Clone, Debug)]
pub struct BucketParts<B: Backend>(pub Vec<FloatTensor<B>>);

// By hand: the derive maps fields that are tensors, and not vectors of them.
impl<B: Backend> ExtensionType<B> for BucketParts<B> {
    type Target = BucketParts<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let part = |part| DispatchTensor { kind: map_kind(BackendTensor::Float(part)), autodiff };
        BucketParts(self.0.into_iter().map(part).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|part| unwrap_kind(part).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let contexts = target.0.iter().map(|part| part.autodiff);
        contexts.fold(DispatchAutodiffContext::Disabled, DispatchAutodiffContext::merge)
    }
}
