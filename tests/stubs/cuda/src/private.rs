//! What tests and the double of NCCL ask, under names that no driver has.

use std::ffi::c_void;

use crate::{
    driver::{current, driver},
    memory::Bad,
};

/// Runs on a stream's thread.
type Hosted = unsafe extern "C" fn(*mut c_void);

/// Writes the faults as a JSON array and forgets them, if they fit; the length of the text.
///
/// # Safety
///
/// `buffer` is valid for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_cuda_faults(buffer: *mut u8, len: usize) -> usize {
    let driver = driver();
    for text in driver.memory.spoilt() {
        driver.double.fault(text);
    }
    // SAFETY: the caller's promise.
    unsafe { driver.double.take_faults(buffer, len) }
}

/// Replaces the configuration; 0 if it could be read.
///
/// # Safety
///
/// `json` is valid for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_cuda_configure(json: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    i32::from(!unsafe { driver().double.configure(json, len) })
}

/// 0 where a region is live device memory, 1 where it is freed, 2 where it is not within an allocation.
#[unsafe(no_mangle)]
extern "C" fn stub_cuda_check(address: u64, len: usize) -> i32 {
    match driver().memory.check(address, len) {
        Ok(()) => 0,
        Err(Bad::Freed) => 1,
        Err(Bad::Outside) => 2,
    }
}

/// The ordinal of the current context's GPU; -1 where there is none.
#[unsafe(no_mangle)]
extern "C" fn stub_cuda_current_device() -> i32 {
    current().map_or(-1, |context| context.device as i32)
}

/// The ordinal of a stream's GPU; -1 where there is no such stream. The legacy stream is that of the current context.
#[unsafe(no_mangle)]
extern "C" fn stub_cuda_stream_device(stream: usize) -> i32 {
    match stream {
        0..=2 => stub_cuda_current_device(),
        _ => driver().plain_stream(stream).map_or(-1, |stream| stream.device as i32),
    }
}

/// Appends a function to a stream, which may take as long as it likes; 0, or a code of the driver.
///
/// # Safety
///
/// `run` may be called once with `data` on any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn stub_cuda_enqueue(stream: usize, run: Hosted, data: *mut c_void) -> i32 {
    let driver = driver();
    let found = match stream {
        0..=2 => current().map(|context| context.legacy.clone()),
        _ => driver.plain_stream(stream),
    };
    let Some(stream) = found else { return crate::code::INVALID_HANDLE };
    let data = data as usize;
    match driver.context_of(stream.device as i32) {
        // SAFETY: the caller's promise.
        Ok(context) => drop(context.submit(&stream, move || unsafe { run(data as *mut c_void) })),
        Err(code) => return code,
    }
    0
}
