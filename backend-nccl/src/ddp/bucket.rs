//! The bucket plan: which gradient lies where. Pure arithmetic, equal on every rank by construction.

use crate::transport::DType;

/// What gradients in host memory start at a multiple of, in bytes, so that views are aligned for any vector unit.
pub(crate) const HOST_ALIGNMENT_BYTES: usize = 64;

/// What gradients on a device start at a multiple of: what CUDA's allocations do, so that a view is as good as a tensor of
/// its own.
pub(crate) const DEVICE_ALIGNMENT_BYTES: usize = 512;

/// The size of one trainable parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientSize {
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

/// Where a gradient lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) bucket: usize,
    pub(crate) offset_bytes: usize,
    pub(crate) len_bytes: usize,
}

impl Slot {
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.offset_bytes..self.offset_bytes + self.len_bytes
    }
}

/// One flat buffer, reduced by one all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) dtype: DType,
    pub(crate) len_bytes: usize,
    /// Indices of the parameters in it, last one of the model first.
    pub(crate) parameters: Vec<usize>,
}

/// All buckets in launch order, and for each parameter its slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketPlan {
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) slots: Vec<Slot>,
}

/// Plans buckets over `sizes`, given in the model's visit order.
///
/// Parameters go to buckets in reverse order, since the backward pass reaches the last layers first. A bucket is
/// closed as soon as it has reached its size (it may exceed it by one parameter); the first bucket of each element
/// type is `first_bucket_bytes`, so that communication starts early. Buckets hold one element type each and are
/// ordered by the parameter that completes them, so that no bucket waits in the queue behind a later one. Gradients start at
/// multiples of `alignment_bytes`.
///
/// Source: `compute_bucket_assignment_by_size` of `torch.distributed`.
pub(crate) fn plan(
    sizes: &[GradientSize],
    first_bucket_bytes: usize,
    bucket_bytes: usize,
    alignment_bytes: usize,
) -> BucketPlan {
    let mut closed: Vec<Bucket> = Vec::new();
    let mut open: Vec<Bucket> = Vec::new();
    let mut slots = vec![Slot { bucket: 0, offset_bytes: 0, len_bytes: 0 }; sizes.len()];
    for (index, size) in sizes.iter().enumerate().rev() {
        let position = open.iter().position(|bucket| bucket.dtype == size.dtype).unwrap_or_else(|| {
            open.push(Bucket { dtype: size.dtype, len_bytes: 0, parameters: Vec::new() });
            open.len() - 1
        });
        let bucket = &mut open[position];
        let len_bytes = size.elements * size.dtype.size_bytes();
        slots[index] = Slot { bucket: 0, offset_bytes: bucket.len_bytes, len_bytes };
        bucket.len_bytes += len_bytes.next_multiple_of(alignment_bytes);
        bucket.parameters.push(index);
        let is_first = !closed.iter().any(|other| other.dtype == size.dtype);
        let limit_bytes = if is_first { first_bucket_bytes } else { bucket_bytes };
        if bucket.len_bytes >= limit_bytes {
            closed.push(open.swap_remove(position));
        }
    }
    closed.append(&mut open);
    closed.sort_by_key(|bucket| std::cmp::Reverse(bucket.parameters.last().copied()));
    for (bucket, contents) in closed.iter().enumerate() {
        for &parameter in &contents.parameters {
            slots[parameter].bucket = bucket;
        }
    }
    BucketPlan { buckets: closed, slots }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(elements: &[usize]) -> Vec<GradientSize> {
        elements.iter().map(|&elements| GradientSize { dtype: DType::F32, elements }).collect()
    }

    #[test]
    fn parameters_fill_buckets_in_reverse_order_with_a_small_first_one() {
        let plan = plan(&f32s(&[16, 32, 48, 64]), 64, 300, 64);
        let contents: Vec<_> = plan.buckets.iter().map(|bucket| bucket.parameters.clone()).collect();
        assert_eq!(contents, [vec![3], vec![2, 1], vec![0]]);
        assert_eq!(plan.slots[1], Slot { bucket: 1, offset_bytes: 192, len_bytes: 128 });
    }

    #[test]
    fn every_slot_is_aligned_inside_its_bucket_and_overlaps_no_other() {
        let sizes = f32s(&[1, 7, 16, 17, 100, 3, 0, 5]);
        for alignment in [HOST_ALIGNMENT_BYTES, DEVICE_ALIGNMENT_BYTES] {
            assert_aligned(&sizes, alignment);
        }
    }

    fn assert_aligned(sizes: &[GradientSize], alignment: usize) {
        let plan = plan(sizes, 64, 256, alignment);
        let mut covered: Vec<Vec<bool>> =
            plan.buckets.iter().map(|bucket| vec![false; bucket.len_bytes]).collect();
        for slot in &plan.slots {
            assert_eq!(slot.offset_bytes % alignment, 0);
            for byte in slot.range() {
                assert!(!std::mem::replace(&mut covered[slot.bucket][byte], true));
            }
        }
        let planned: usize = plan.buckets.iter().map(|bucket| bucket.parameters.len()).sum();
        assert_eq!(planned, sizes.len());
    }

    #[test]
    fn element_types_never_share_a_bucket_and_launch_order_follows_completion() {
        let mut sizes = f32s(&[16, 16, 16]);
        sizes[1].dtype = DType::BF16;
        let plan = plan(&sizes, 1 << 20, 1 << 20, 64);
        let contents: Vec<_> =
            plan.buckets.iter().map(|bucket| (bucket.dtype, bucket.parameters.clone())).collect();
        assert_eq!(contents, [(DType::BF16, vec![1]), (DType::F32, vec![2, 0])]);
    }

    #[test]
    fn a_model_without_parameters_has_no_buckets() {
        assert!(plan(&[], 1, 1, 64).buckets.is_empty());
    }
}
