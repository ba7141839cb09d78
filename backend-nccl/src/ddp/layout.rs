//! What communication hooks are told of the buckets.

use super::bucket::{Bucket, BucketPlan};
use super::communication::{BucketLayout, BucketParameter};
use super::parameters::Trainable;

/// What the buckets of the plan hold.
pub(crate) fn layouts(plan: &BucketPlan, trainable: &[Trainable]) -> Vec<BucketLayout> {
    let parameter = |&index: &usize| BucketParameter {
        name: trainable[index].name.clone(),
        shape: trainable[index].shape.clone(),
        range: plan.slots[index].range(),
    };
    let layout = |(index, bucket): (usize, &Bucket)| BucketLayout {
        index,
        is_last: index + 1 == plan.buckets.len(),
        dtype: bucket.dtype,
        len_bytes: bucket.len_bytes,
        parameters: bucket.parameters.iter().map(parameter).collect(),
    };
    plan.buckets.iter().enumerate().map(layout).collect()
}
