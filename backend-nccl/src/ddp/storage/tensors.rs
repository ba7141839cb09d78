//! Gradients as tensors on their device, which reach the other ranks without a trip through host memory.
//!
//! A gradient is kept as it arrives. When those of a bucket are complete they are copied into one new flat tensor, which is
//! reduced in place on the communication's own stream, and the averages are views of it. So nothing is read to the host and
//! nothing waits for the device inside of the backward pass, and the memory for gradients is what it would be without
//! buckets, and that of the buckets under way.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::{Averaged, Storage};
use crate::ddp::bucket::{Bucket, BucketPlan};
use crate::ddp::communication::Terms;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::hook::ArrivedGradient;
use crate::ops::{AsyncCall, BucketParts, CollectiveBackend, FlatBucket};

/// What travels between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Nothing: there are no other ranks.
    Nothing,
    /// Gradients in their own type.
    AsTheyAre,
    /// Gradients in f32 and f64 rounded to a half type, and widened again.
    Half(FloatDType),
}

pub(crate) struct TensorStorage {
    group: ProcessGroup,
    plan: Arc<BucketPlan>,
    wire: Wire,
    /// Where the parameters are, without autodiff.
    device: Device,
    /// What each parameter has so far, with one dimension. A parameter without a gradient contributes zeros.
    kept: Vec<Option<Tensor<1>>>,
    /// Buckets that are averaged, in their order.
    in_flight: VecDeque<Flight>,
    /// Gradients that were averaged.
    averaged: Vec<Option<Tensor<1>>>,
}

/// A bucket that was launched.
struct Flight {
    bucket: usize,
    /// The flat tensor, and what says when it may be used; `None` where nothing travels.
    reduced: Option<(Tensor<1>, AsyncCall)>,
}

impl TensorStorage {
    pub(crate) fn new(group: &ProcessGroup, plan: Arc<BucketPlan>, wire: Wire, device: Device) -> Self {
        let parameters = plan.slots.len();
        Self {
            group: group.clone(),
            plan,
            wire,
            device: device.without_autodiff(),
            kept: vec![None; parameters],
            in_flight: VecDeque::new(),
            averaged: vec![None; parameters],
        }
    }

    /// The gradients of a bucket that are there, ready to be packed, and the ranges that they go to.
    fn packed(&mut self, bucket: usize, share: f64) -> (Vec<Tensor<1>>, FlatBucket) {
        let plan = self.plan.clone();
        let contents = &plan.buckets[bucket];
        let whole = flat(&plan, contents);
        let (mut parts, mut ranges) = (Vec::new(), Vec::new());
        for (&parameter, range) in contents.parameters.iter().zip(whole.ranges) {
            if let Some(gradient) = self.kept[parameter].take() {
                parts.push(self.on_the_wire(scaled(gradient, share)));
                ranges.push(range);
            }
        }
        if parts.is_empty() {
            // Some part must tell where the bucket is.
            let dtype = match (self.wire, float_dtype(contents.dtype)) {
                (Wire::Half(half), FloatDType::F32 | FloatDType::F64) => half,
                (_, own) => own,
            };
            parts.push(Tensor::empty([0], (&self.device, DType::from(dtype))));
            ranges.push(0..0);
        }
        (parts, FlatBucket { ranges, len: whole.len })
    }

    fn on_the_wire(&self, gradient: Tensor<1>) -> Tensor<1> {
        match (self.wire, gradient.dtype()) {
            (Wire::Half(half), DType::F32 | DType::F64) => cast(gradient, half),
            _ => gradient,
        }
    }
}

impl Storage for TensorStorage {
    fn begin(&mut self) {}

    fn put(&mut self, parameter: usize, gradient: &ArrivedGradient<'_>, adds: bool) -> Result<()> {
        let Some(gradient) = gradient.tensor() else {
            return Err(Error::TensorRead { cause: "this backend's gradients cannot be kept".into() });
        };
        let kept = &mut self.kept[parameter];
        *kept = Some(match kept.take() {
            Some(before) if adds => before.add(gradient),
            _ => gradient,
        });
        Ok(())
    }

    fn scale(&mut self, parameter: usize, factor: f64) {
        let kept = &mut self.kept[parameter];
        *kept = kept.take().map(|gradient| scaled(gradient, factor));
    }

    fn clear(&mut self, parameter: usize) {
        self.kept[parameter] = None;
    }

    fn launch(&mut self, bucket: usize, share: f64, terms: Terms) -> Result<()> {
        let reduced = match self.wire {
            // The average over one rank is what it has.
            Wire::Nothing => None,
            Wire::AsTheyAre | Wire::Half(_) => {
                let (parts, contents) = self.packed(bucket, share);
                let parts = parts.into_iter().map(Tensor::into_dispatch).collect();
                let call = AsyncCall::new(&self.group);
                let flat = Dispatch::group_bucket_start(BucketParts(parts), contents, terms.op, call.clone());
                call.started()?;
                Some((Tensor::from_dispatch(flat), call))
            }
        };
        self.in_flight.push_back(Flight { bucket, reduced });
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let Some(Flight { bucket, reduced }) = self.in_flight.pop_front() else { return Ok(()) };
        let contents = &self.plan.buckets[bucket];
        let Some((reduced, call)) = reduced else {
            for &parameter in &contents.parameters {
                self.averaged[parameter] = self.kept[parameter].take();
            }
            return Ok(());
        };
        call.wait()?;
        let reduced = cast(reduced, float_dtype(contents.dtype));
        let parts = Dispatch::bucket_parts(reduced.into_dispatch(), flat(&self.plan, contents));
        for (&parameter, part) in contents.parameters.iter().zip(parts) {
            self.averaged[parameter] = Some(Tensor::from_dispatch(part));
        }
        Ok(())
    }

    fn hand_out(&mut self, used: &[bool], _: Terms) -> Result<Vec<Option<Averaged>>> {
        let take = |(part, used): (&mut Option<Tensor<1>>, &bool)| part.take().filter(|_| *used);
        let averaged = self.averaged.iter_mut().zip(used).map(take);
        Ok(averaged.map(|part| part.map(|part| Averaged::Tensor(Box::new(part)))).collect())
    }

    fn forget(&mut self) {
        self.in_flight.clear();
        self.kept.fill(None);
        self.averaged.fill(None);
    }
}

/// Where the gradients of a bucket lie in its flat tensor.
fn flat(plan: &BucketPlan, bucket: &Bucket) -> FlatBucket {
    let size = bucket.dtype.size_bytes();
    let range = |&parameter: &usize| {
        let range = plan.slots[parameter].range();
        range.start / size..range.end / size
    };
    FlatBucket { ranges: bucket.parameters.iter().map(range).collect(), len: bucket.len_bytes / size }
}

fn scaled(gradient: Tensor<1>, factor: f64) -> Tensor<1> {
    if factor == 1.0 { gradient } else { gradient.mul_scalar(factor) }
}

fn cast(tensor: Tensor<1>, dtype: FloatDType) -> Tensor<1> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    Tensor::from_dispatch(Dispatch::cast_float(tensor.into_dispatch(), dtype))
}

/// The float type of a bucket; gradients have no other.
fn float_dtype(dtype: crate::transport::DType) -> FloatDType {
    use crate::transport::DType as Own;
    match dtype {
        Own::F64 => FloatDType::F64,
        Own::F16 => FloatDType::F16,
        Own::BF16 => FloatDType::BF16,
        Own::F32 | Own::I32 | Own::I64 | Own::U8 => FloatDType::F32,
    }
}
