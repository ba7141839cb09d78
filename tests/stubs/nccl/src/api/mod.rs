//! The functions of `nccl.h` that are here, by topic. Each takes and returns what NCCL documents under its name; the pointers
//! that it is given are the caller's to keep valid, as in C.

mod collectives;
mod configuration;
mod general;
mod groups;
mod lifetime;

use crate::{code, library::Outcome};

/// Writes a result where the caller wants it; a null pointer is refused as NCCL refuses it.
///
/// # Safety
///
/// `out` is null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise, and not null.
    unsafe { out.write(value) };
    Ok(())
}
