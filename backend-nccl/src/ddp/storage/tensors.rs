//! Gradients as tensors on their device, which reach the other ranks without a trip through host memory.
//!
//! A gradient is kept as it arrives. When those of a bucket are complete they are copied into one new flat tensor, which is
//! reduced in place on the communication's own stream, and the averages are views of it. So nothing is read to the host and
//! nothing waits for the device inside of the backward pass.
//!
//! A bucket and its gradients both have memory until the device has reduced the bucket, and the host may be ahead of it. It
//! waits at the end of a step until the device has reduced the buckets of the step before, so that memory is needed for the
//! gradients and the buckets of two steps at most; the averages that are handed out are among these.

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
    /// The newest bucket that was averaged in this step.
    newest: Option<AsyncCall>,
    /// What the device may still be at.
    behind: Behind,
}

/// The last bucket of the last step: the device reduces buckets in their order, so all have ended when that one has.
#[derive(Default)]
struct Behind(Option<AsyncCall>);

impl Behind {
    /// Ends a step whose last bucket is `last`: waits until the device has reduced those of the step before. It has this
    /// step to go on with meanwhile, so it is not idle, and normally it has reduced them long ago.
    fn end_step(&mut self, last: Option<AsyncCall>) -> Result<()> {
        let before = std::mem::replace(&mut self.0, last);
        before.map_or(Ok(()), |before| before.wait_for_end())
    }
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
            newest: None,
            behind: Behind::default(),
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
        self.newest = Some(call);
        let reduced = cast(reduced, float_dtype(contents.dtype));
        let parts = Dispatch::bucket_parts(reduced.into_dispatch(), flat(&self.plan, contents));
        for (&parameter, part) in contents.parameters.iter().zip(parts) {
            self.averaged[parameter] = Some(Tensor::from_dispatch(part));
        }
        Ok(())
    }

    fn hand_out(&mut self, used: &[bool], _: Terms) -> Result<Vec<Option<Averaged>>> {
        self.behind.end_step(self.newest.take())?;
        let take = |(part, used): (&mut Option<Tensor<1>>, &bool)| part.take().filter(|_| *used);
        let averaged = self.averaged.iter_mut().zip(used).map(take);
        Ok(averaged.map(|part| part.map(|part| Averaged::Tensor(Box::new(part)))).collect())
    }

    fn forget(&mut self) {
        self.in_flight.clear();
        self.kept.fill(None);
        self.averaged.fill(None);
        self.newest = None;
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::group::{DeviceWork, Until};

    #[test]
    fn the_end_of_a_step_waits_for_the_device_to_have_reduced_the_buckets_of_the_step_before() {
        let group = ProcessGroup::single();
        let waited = Arc::new(Mutex::new(Vec::new()));
        let mut behind = Behind::default();
        for step in 0..4 {
            let (call, waited_for) = (AsyncCall::new(&group), waited.clone());
            call.leave(DeviceWork::new(move |until| {
                waited_for.lock().unwrap().push((step, until));
                Ok(())
            }));
            call.wait().unwrap();
            behind.end_step(Some(call)).unwrap();
            let expected = [(step, Until::Ordered)].into_iter();
            let expected: Vec<_> = expected.chain((step > 0).then(|| (step - 1, Until::Ended))).collect();
            assert_eq!(std::mem::take(&mut *waited.lock().unwrap()), expected);
        }
        // A step in which nothing travels.
        behind.end_step(None).unwrap();
        behind.end_step(None).unwrap();
        assert_eq!(*waited.lock().unwrap(), [(3, Until::Ended)]);
    }

    #[test]
    fn what_has_ended_the_group_in_a_step_before_ends_the_step() {
        let call = AsyncCall::new(&ProcessGroup::single());
        call.leave(DeviceWork::new(|until| match until {
            Until::Ordered => Ok(()),
            Until::Ended => Err(Error::TensorRead { cause: "the device is lost".into() }),
        }));
        call.wait().unwrap();
        let mut behind = Behind(Some(call));
        assert!(behind.end_step(None).unwrap_err().to_string().contains("the device is lost"));
        assert!(behind.end_step(None).is_ok());
    }
}
