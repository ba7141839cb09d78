//! Buckets in host memory, averaged by the communication hook over the group's host transport.

use std::collections::VecDeque;
use std::sync::Arc;

use burn::tensor::Bytes;

use super::parts::{Lent, lend};
use super::{Averaged, Storage, memory};
use crate::ddp::arithmetic;
use crate::ddp::bucket::{Bucket, BucketPlan};
use crate::ddp::communication::{Communicator, Terms};
use crate::error::{Error, Result};
use crate::group::{ProcessGroup, Work};
use crate::hook::ArrivedGradient;
use crate::transport::DType;

pub(crate) struct HostStorage {
    group: ProcessGroup,
    plan: Arc<BucketPlan>,
    communicator: Arc<Communicator>,
    /// Buckets that are being filled; `None` while the communication hook owns the buffer.
    buffers: Vec<Option<Bytes>>,
    /// Buckets handed out in the last step, taken back when nobody holds a gradient of theirs any more.
    handed_out: Vec<Option<Lent>>,
    /// Buckets that the communication hook averages.
    in_flight: VecDeque<Work<Bytes>>,
    /// Buckets that it has averaged.
    averaged: Vec<Bytes>,
}

impl HostStorage {
    pub(crate) fn new(group: &ProcessGroup, plan: Arc<BucketPlan>, communicator: Arc<Communicator>) -> Self {
        let none = || plan.buckets.iter().map(|_| None).collect::<Vec<Option<Bytes>>>();
        Self {
            group: group.clone(),
            communicator,
            buffers: none(),
            handed_out: plan.buckets.iter().map(|_| None).collect(),
            in_flight: VecDeque::new(),
            averaged: Vec::new(),
            plan,
        }
    }

    /// The place of a gradient in its bucket.
    fn slot(&mut self, parameter: usize) -> Option<(&mut [u8], DType)> {
        let slot = self.plan.slots[parameter];
        let buffer = self.buffers[slot.bucket].as_mut()?;
        Some((&mut buffer[slot.range()], self.plan.buckets[slot.bucket].dtype))
    }
}

impl Storage for HostStorage {
    fn begin(&mut self) {
        for (index, bucket) in self.plan.buckets.iter().enumerate() {
            if self.buffers[index].is_none() {
                let reusable = self.handed_out[index].take().and_then(Lent::take_back);
                self.buffers[index] =
                    Some(reusable.unwrap_or_else(|| memory::bucket(&self.group, bucket.len_bytes)));
            }
        }
    }

    fn put(&mut self, parameter: usize, gradient: &ArrivedGradient<'_>, adds: bool) -> Result<()> {
        let Some((target, dtype)) = self.slot(parameter) else {
            return Err(Error::ModelChanged { cause: "a gradient came after its bucket had left".into() });
        };
        if !adds {
            return gradient.write_to(target);
        }
        let mut addend = zeroed(target.len(), dtype);
        let addend = &mut addend[..target.len()];
        gradient.write_to(addend)?;
        arithmetic::add(target, addend, dtype);
        Ok(())
    }

    fn scale(&mut self, parameter: usize, factor: f64) {
        if let Some((target, dtype)) = self.slot(parameter) {
            arithmetic::scale(target, factor, dtype);
        }
    }

    fn clear(&mut self, parameter: usize) {
        if let Some((target, _)) = self.slot(parameter) {
            target.fill(0);
        }
    }

    fn launch(&mut self, bucket: usize, share: f64, terms: Terms) -> Result<()> {
        if let Some(mut buffer) = self.buffers[bucket].take() {
            if share != 1.0 {
                arithmetic::scale(&mut buffer, share, self.plan.buckets[bucket].dtype);
            }
            self.in_flight.push_back(self.communicator.start(&self.group, bucket, buffer, terms));
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        if let Some(work) = self.in_flight.pop_front() {
            self.averaged.push(work.wait()?);
        }
        Ok(())
    }

    fn hand_out(&mut self, used: &[bool], terms: Terms) -> Result<Vec<Option<Averaged>>> {
        let of_bucket =
            |bucket: &Bucket| bucket.parameters.iter().map(|&parameter| used[parameter]).collect();
        let used_of_buckets: Vec<Vec<bool>> = self.plan.buckets.iter().map(of_bucket).collect();
        self.communicator.finish(&self.group, &mut self.averaged, &used_of_buckets, terms)?;
        let mut gradients: Vec<Option<Averaged>> = self.plan.slots.iter().map(|_| None).collect();
        for (index, averaged) in std::mem::take(&mut self.averaged).into_iter().enumerate() {
            let parameters = &self.plan.buckets[index].parameters;
            let ranges = parameters.iter().map(|&parameter| self.plan.slots[parameter].range());
            let (lent, parts) = lend(averaged, ranges);
            self.handed_out[index] = Some(lent);
            let parts = parameters.iter().zip(parts).filter(|&(&parameter, _)| used[parameter]);
            parts.for_each(|(&parameter, part)| gradients[parameter] = Some(Averaged::Bytes(part)));
        }
        Ok(gradients)
    }

    fn forget(&mut self) {
        self.in_flight.clear();
        self.averaged.clear();
    }
}

/// A zeroed buffer, aligned for `dtype`.
fn zeroed(len_bytes: usize, dtype: DType) -> Bytes {
    match dtype.size_bytes() {
        2 => Bytes::from_elems(vec![0u16; len_bytes / 2]),
        4 => Bytes::from_elems(vec![0u32; len_bytes / 4]),
        _ => Bytes::from_elems(vec![0u64; len_bytes.div_ceil(8)]),
    }
}
