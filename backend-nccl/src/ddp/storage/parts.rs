//! Cuts a reduced bucket into gradients that own their memory.
//!
//! A view of a shared bucket can only be read: every change of a gradient, unscaling and clipping first, would go to
//! new memory, whose fresh pages cost many times the arithmetic. A part is the only owner of its bytes, so Flex works
//! on it in place; when all parts are gone, the bucket is whole again.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};

/// The binary logarithm of the widest element, of 8 bytes.
const MOST_ALIGNED: u32 = 3;

/// The memory of a bucket that was cut.
struct Memory {
    start: NonNull<u8>,
    /// Keeps the memory alive; not looked at until no part is left.
    bytes: Bytes,
}

// SAFETY: `start` points into memory that `bytes`, which is Send, owns.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` is only used by parts, each within its own range, and by nobody through `bytes`.
unsafe impl Sync for Memory {}

/// A bucket whose parts are out.
pub(crate) struct Lent(Arc<Memory>);

impl Lent {
    /// The bucket, if nobody holds a part of it any more.
    pub(crate) fn take_back(self) -> Option<Bytes> {
        Arc::try_unwrap(self.0).ok().map(|memory| memory.bytes)
    }
}

/// Cuts `bucket` into the bytes of each range, which ascend.
///
/// # Panics
/// If ranges overlap or leave the bucket.
pub(crate) fn lend(mut bucket: Bytes, ranges: impl IntoIterator<Item = Range<usize>>) -> (Lent, Vec<Bytes>) {
    let len = bucket.len();
    let start = NonNull::from(&mut bucket[..]).cast();
    let memory = Arc::new(Memory { start, bytes: bucket });
    let mut end_of_last = 0;
    let parts = ranges.into_iter().map(|range| {
        assert!(
            end_of_last <= range.start && range.start <= range.end && range.end <= len,
            "{range:?} of {len}"
        );
        end_of_last = range.end;
        let len = range.len();
        let part = Part { memory: memory.clone(), range };
        // SAFETY: the part has `len` bytes, initialised as those of the bucket are.
        unsafe { Bytes::from_controller(Box::new(part), len) }
    });
    let parts = parts.collect();
    (Lent(memory), parts)
}

/// One range of a bucket, which no other part overlaps.
struct Part {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Part {
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies within the memory.
        unsafe { self.memory.start.add(self.range.start) }
    }
}

impl AllocationController for Part {
    fn alloc_align(&self) -> usize {
        // What a copy will have. It must suit the elements; Burn's allocator asserts that it is no more than 16.
        1 << self.start().addr().trailing_zeros().min(MOST_ALIGNED)
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: `memory` keeps the bytes alive, no other part has them, and `self` is borrowed for as long.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start().cast().as_ptr(), self.range.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: as above, for reading.
        Ok(unsafe { std::slice::from_raw_parts(self.start().cast().as_ptr(), self.range.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Bytes {
        Bytes::from_elems((0u32..64).collect())
    }

    fn words(bytes: &[u8]) -> &[u32] {
        bytemuck::cast_slice(bytes)
    }

    #[test]
    fn parts_are_written_apart_and_the_bucket_comes_back_with_what_they_wrote() {
        let (lent, mut parts) = lend(bucket(), [0..8, 64..64, 64..128]);
        parts[2].fill(0);
        assert_eq!(words(&parts[0]), [0, 1]);
        assert!(parts[1].is_empty());
        drop(parts);
        let bucket = lent.take_back().expect("no part is left");
        assert_eq!(words(&bucket)[15..33], [&[15][..], &[0; 16], &[32]].concat());
    }

    #[test]
    fn a_bucket_does_not_come_back_while_a_part_lives_and_the_part_outlives_it() {
        let (lent, mut parts) = lend(bucket(), [0..8, 8..16]);
        let kept = parts.pop().expect("two parts");
        drop(parts);
        assert!(lent.take_back().is_none());
        assert_eq!(words(&kept), [2, 3]);
    }

    #[test]
    fn a_copy_of_a_part_is_independent_and_aligned() {
        // Some of them lie at multiples of 64 bytes, wherever the bucket begins.
        let starts = (0..256).step_by(4);
        let (_lent, parts) = lend(bucket(), starts.map(|start| start..start + 4));
        for (number, part) in (0u32..).zip(&parts) {
            let mut copy = part.clone();
            assert_eq!(words(&copy), [number]);
            copy.fill(0);
            assert_eq!(words(part), [number]);
        }
    }

    #[test]
    fn a_part_can_be_dropped_on_another_thread() {
        let (lent, parts) = lend(bucket(), [0..128, 128..256]);
        std::thread::scope(|scope| {
            for mut part in parts {
                scope.spawn(move || part.fill(1));
            }
        });
        assert!(lent.take_back().expect("no part is left").iter().all(|&byte| byte == 1));
    }

    #[test]
    #[should_panic(expected = "4..12 of 256")]
    fn parts_that_overlap_are_refused() {
        lend(bucket(), [0..8, 4..12]);
    }
}
