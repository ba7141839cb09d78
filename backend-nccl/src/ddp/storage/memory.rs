//! The memory of buckets: in the segment that the ranks of a host share, where there is one. A gradient is copied once,
//! to its place in the bucket, and reduced where it lies.

use std::mem::MaybeUninit;

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};

use crate::group::ProcessGroup;
use crate::transport::Buffer;

/// The alignment that copies have: that of the widest element.
const COPY_ALIGNMENT: usize = 8;

/// `len_bytes` zeros, aligned for any element.
pub(crate) fn bucket(group: &ProcessGroup, len_bytes: usize) -> Bytes {
    let held = Held(group.buffer(len_bytes));
    // SAFETY: the buffer has that many bytes, all of them initialised.
    unsafe { Bytes::from_controller(Box::new(held), len_bytes) }
}

struct Held(Buffer);

impl AllocationController for Held {
    fn alloc_align(&self) -> usize {
        COPY_ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = &mut self.0;
        // SAFETY: the same bytes; who takes them so must leave them initialised, as the trait's contract says.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = &self.0;
        // SAFETY: the same bytes, for reading.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupOptions, TransportKind};

    #[test]
    fn a_bucket_is_zeroed_keeps_what_is_written_and_outlives_its_group() {
        for transport in [TransportKind::Tcp, TransportKind::SharedMemory] {
            let options = GroupOptions::default().with_transport(transport);
            let groups = ProcessGroup::local(2, options).unwrap();
            let mut bytes = bucket(&groups[0], 1000);
            assert_eq!(bytes[..], [0; 1000]);
            drop(groups);
            bytes[999] = 7;
            let copy = bytes.clone();
            drop(bytes);
            assert_eq!(copy[998..], [0, 7]);
        }
    }
}
