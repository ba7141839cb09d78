//! Memory for vectors.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Size of a line of the cache, which no vector should straddle.
const LINE: usize = 64;

/// Values of f32 that begin at a line of the cache; zeros at first.
pub(super) struct Memory {
    start: NonNull<f32>,
    values: usize,
}

// SAFETY: it owns its values, which are plain numbers.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference they are but read, or written through pointers under the promises of who does.
unsafe impl Sync for Memory {}

impl Memory {
    /// No memory.
    pub(super) const fn none() -> Self {
        Self { start: NonNull::dangling(), values: 0 }
    }

    /// Room for this many values; none where the system has no more.
    pub(super) fn new(values: usize) -> Option<Self> {
        if values == 0 {
            return Some(Self::none());
        }
        let layout = Self::layout(values)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start.cast()).map(|start| Self { start, values })
    }

    fn layout(values: usize) -> Option<Layout> {
        Layout::from_size_align(values.checked_mul(size_of::<f32>())?, LINE).ok()
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.values
    }

    /// The first value, to write through under the promises of who does.
    pub(super) fn pointer(&self) -> *mut f32 {
        self.start.as_ptr()
    }

    /// The values.
    pub(super) fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: it owns that many values, which were set to zero at first.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.values) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.values).filter(|_| self.values > 0) {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}
