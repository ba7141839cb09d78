//! Versions, errors, ids, and what a communicator is.

use std::ffi::c_char;

use super::put;
use crate::{
    code, hub,
    library::{Outcome, code_of, library},
    unique_id::{self, UniqueId},
};

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut i32) -> i32 {
    let injected = library().inject("ncclGetVersion", None);
    // SAFETY: the caller's pointer, as in C.
    code_of(injected.and_then(|()| unsafe { put(version, library().config().version) }))
}

/// The hub of the communicator starts here, in a thread of this process.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(out: *mut UniqueId) -> i32 {
    let made = || -> Outcome {
        library().inject("ncclGetUniqueId", None)?;
        let (id, listener) = unique_id::listen().map_err(|_| code::SYSTEM_ERROR)?;
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(out, id) }?;
        std::thread::spawn(move || hub::serve(&listener));
        Ok(())
    };
    code_of(made())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    code::text(code).as_ptr().cast()
}

/// The last words about a communicator; for none, the ones of no error.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(communicator: usize) -> *const c_char {
    match communicator {
        0 => c"".as_ptr(),
        handle => library()
            .enter("ncclGetLastError", handle, true)
            .map_or(c"".as_ptr(), |found| found.said().as_ptr()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(communicator: usize, out: *mut i32) -> i32 {
    let found = library().enter("ncclCommCount", communicator, false);
    // SAFETY: the caller's pointer, as in C.
    code_of(found.and_then(|found| unsafe { put(out, found.ranks as i32) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(communicator: usize, out: *mut i32) -> i32 {
    let found = library().enter("ncclCommUserRank", communicator, false);
    // SAFETY: the caller's pointer, as in C.
    code_of(found.and_then(|found| unsafe { put(out, found.rank as i32) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCuDevice(communicator: usize, out: *mut i32) -> i32 {
    let found = library().enter("ncclCommCuDevice", communicator, false);
    // SAFETY: the caller's pointer, as in C.
    code_of(found.and_then(|found| unsafe { put(out, found.device) }))
}
