//! The functions of `cuda.h` that are here, by topic. Each takes and returns what the driver documents under its name; the
//! pointers that it is given are the caller's to keep valid, as in C.

mod absent;
mod contexts;
mod copies;
mod devices;
mod events;
mod general;
mod memory;
mod streams;

use crate::{code, driver::Outcome};

/// Writes a result where the caller wants it; a null pointer is refused as the driver refuses it.
///
/// # Safety
///
/// `out` is null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise, and not null.
    unsafe { out.write(value) };
    Ok(())
}
