//! What a communication hook sees of a bucket.

use std::ops::Range;

use crate::transport::{DType, ReduceOp};

/// A parameter whose gradient lies in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketParameter {
    /// Field names from the module's root, joined by dots.
    pub name: String,
    /// Its shape, which is the gradient's.
    pub shape: Vec<usize>,
    /// Where its gradient lies in the bucket, in bytes, in row-major order. It begins at a multiple of 64; what is
    /// between two gradients means nothing.
    pub range: Range<usize>,
}

/// What a bucket holds. The same in every step and on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Its number. Buckets are launched in this order.
    pub index: usize,
    /// Whether it is the last one of a step.
    pub is_last: bool,
    /// The type of all its gradients, a float.
    pub dtype: DType,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// What lies in it, in the order of their ranges: the model's last parameter first.
    pub parameters: Vec<BucketParameter>,
}

/// A bucket in one step: the sum of this rank's micro-batches divided by their number, to be averaged over ranks.
#[derive(Debug)]
pub struct GradientBucket<'a> {
    pub(super) layout: &'a BucketLayout,
    pub(super) bytes: &'a mut [u8],
    pub(super) op: ReduceOp,
    pub(super) loss_scale: f32,
    pub(super) used: &'a [bool],
}

impl<'a> GradientBucket<'a> {
    /// What it holds.
    pub fn layout(&self) -> &'a BucketLayout {
        self.layout
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.layout.index
    }

    /// Whether it is the last one of the step.
    pub fn is_last(&self) -> bool {
        self.layout.is_last
    }

    /// The type of its gradients.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// What lies in it.
    pub fn parameters(&self) -> &'a [BucketParameter] {
        &self.layout.parameters
    }

    /// The gradients: before averaging this rank's, after it the average.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The gradients, to be replaced by the average.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The gradient of a parameter of this bucket, by its place in [`parameters`](Self::parameters).
    pub fn gradient_mut(&mut self, parameter: usize) -> &mut [u8] {
        &mut self.bytes[self.layout.parameters[parameter].range.clone()]
    }

    /// The reduction that makes the ranks' buckets the average: [`ReduceOp::Mean`], or [`ReduceOp::Sum`] where some
    /// ranks have run out of data and each has divided its gradients by the number of those that have not.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// The factor that the loss was multiplied by, where it is known
    /// ([`DistributedDataParallel::set_loss_scale`](crate::DistributedDataParallel::set_loss_scale)); else 1. What is
    /// kept from step to step must not depend on it, since it changes.
    pub fn loss_scale(&self) -> f32 {
        self.loss_scale
    }

    /// Whether any rank had a gradient for a parameter of this bucket. Known in
    /// [`finish`](super::CommunicationHook::finish) only; before it every one counts as used.
    pub fn is_used(&self, parameter: usize) -> bool {
        self.used.get(parameter).copied().unwrap_or(true)
    }
}
