//! A vector of bytes as Burn's bytes. Burn's own conversion copies it all, since a vector of bytes may lie anywhere; what
//! the allocator gives lies well enough.

use std::mem::MaybeUninit;

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};

/// The alignment that Burn's allocator gives at most, as a power of two.
const MOST_ALIGNED: u32 = 4;

/// The bytes of `vector`, where they are.
pub(super) fn bytes(vector: Vec<u8>) -> Bytes {
    let length = vector.len();
    // SAFETY: a vector's bytes are initialised up to its length.
    unsafe { Bytes::from_controller(Box::new(Heap(vector)), length) }
}

struct Heap(Vec<u8>);

impl AllocationController for Heap {
    fn alloc_align(&self) -> usize {
        // What a copy will have; Burn asserts that it asks for no more than it gives.
        1 << self.0.as_ptr().addr().trailing_zeros().min(MOST_ALIGNED)
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: the caller writes initialised bytes only.
        Ok(unsafe { &mut *(self.0.as_mut_slice() as *mut [u8] as *mut [MaybeUninit<u8>]) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: initialised bytes are possibly uninitialised ones too.
        Ok(unsafe { &*(self.0.as_slice() as *const [u8] as *const [MaybeUninit<u8>]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_stays_where_it_is_is_written_in_place_and_copies_are_independent() {
        let vector = vec![1, 2, 3];
        let place = vector.as_ptr();
        let mut bytes = bytes(vector);
        assert_eq!(bytes.as_ptr(), place);
        let mut copy = bytes.clone();
        copy[0] = 9;
        bytes[1] = 7;
        assert_eq!((&bytes[..], &copy[..]), (&[1, 7, 3][..], &[9, 2, 3][..]));
        assert_eq!(bytes.as_ptr(), place);
    }

    #[test]
    fn no_bytes_are_bytes() {
        assert!(bytes(Vec::new()).is_empty());
    }
}
