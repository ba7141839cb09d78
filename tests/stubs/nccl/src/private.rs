//! What tests ask, under names that NCCL does not have.

use crate::library::library;

/// Writes the faults as a JSON array and forgets them, if they fit; the length of the text.
///
/// # Safety
///
/// `buffer` is valid for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_nccl_faults(buffer: *mut u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { library().double.take_faults(buffer, len) }
}

/// Replaces the configuration; 0 if it could be read.
///
/// # Safety
///
/// `json` is valid for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_nccl_configure(json: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    i32::from(!unsafe { library().double.configure(json, len) })
}
