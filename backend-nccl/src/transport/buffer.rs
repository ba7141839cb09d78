//! Memory for the data of collectives.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

/// Bytes on the heap are aligned for any element and vector unit.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that a group's transport moves without a copy where it can, such as a part of the segment that the ranks of
/// one host share. It stays valid after the group has ended.
///
/// After a collective on it has failed its contents are not this rank's alone: a peer that has not heard of the failure
/// may still write there.
pub struct Buffer {
    memory: Box<dyn Memory>,
    len: usize,
}

/// Where the bytes of a [`Buffer`] lie. At least as many as the buffer has.
pub(crate) trait Memory: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Buffer {
    /// `len_bytes` zeros in ordinary memory.
    pub(crate) fn on_heap(len_bytes: usize) -> Self {
        let lines = vec![Line([0; 64]); len_bytes.div_ceil(64)];
        Self::new(Box::new(Heap(lines)), len_bytes)
    }

    /// The first `len_bytes` of `memory`.
    pub(crate) fn new(memory: Box<dyn Memory>, len_bytes: usize) -> Self {
        debug_assert!(memory.bytes().len() >= len_bytes);
        Self { memory, len: len_bytes }
    }
}

struct Heap(Vec<Line>);

impl Memory for Heap {
    fn bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding, and any byte is valid.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * size_of::<Line>()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * size_of::<Line>())
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_on_the_heap_is_zeroed_and_aligned() {
        for len in [0, 1, 64, 1000] {
            let mut buffer = Buffer::on_heap(len);
            assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 0));
            assert!(buffer.as_ptr().addr().is_multiple_of(64));
            buffer.fill(7);
            assert!(buffer.as_ref().iter().all(|byte| *byte == 7));
        }
    }
}
