//! Streams.

use std::ffi::c_void;

use super::put;
use crate::{
    code,
    driver::{Outcome, call, driver, in_host_function, need_current},
    stream::Mark,
};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A function that a stream calls on the host.
type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

unsafe fn create(function: &str, out: *mut usize, flags: u32) -> Outcome {
    if flags > NON_BLOCKING {
        return driver().refuse(code::INVALID_VALUE, format!("{function}: flags {flags}"));
    }
    let stream = need_current()?.add_stream(flags != NON_BLOCKING);
    // SAFETY: the caller's promise.
    unsafe { put(out, stream.handle) }?;
    driver().add_stream(stream);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(out: *mut usize, flags: u32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuStreamCreate", |_| unsafe { create("cuStreamCreate", out, flags) })
}

/// A priority outside of the range is brought into it, as the driver does; streams here take no notice of it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(out: *mut usize, flags: u32, _priority: i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuStreamCreateWithPriority", |_| unsafe { create("cuStreamCreateWithPriority", out, flags) })
}

/// What was submitted still runs; the handle is gone at once.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: usize) -> i32 {
    call("cuStreamDestroy_v2", |driver| match driver.remove_stream(handle) {
        Some(stream) => {
            stream.close();
            Ok(())
        }
        None => driver.refuse(code::INVALID_HANDLE, format!("cuStreamDestroy_v2: no stream {handle:#x}")),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: usize) -> i32 {
    call("cuStreamSynchronize", |driver| {
        driver.stream_at("cuStreamSynchronize", handle)?.mark().wait();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: usize) -> i32 {
    call("cuStreamQuery", |driver| match driver.stream_at("cuStreamQuery", handle)?.mark().is_done() {
        true => Ok(()),
        false => Err(code::NOT_READY),
    })
}

/// The wait is the stream's, not the caller's. An event that was never recorded is done.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: usize, event: usize, flags: u32) -> i32 {
    call("cuStreamWaitEvent", |driver| {
        if flags > 1 {
            return driver.refuse(code::INVALID_VALUE, format!("cuStreamWaitEvent: flags {flags}"));
        }
        let stream = driver.stream_at("cuStreamWaitEvent", handle)?;
        let marks = driver.event_at("cuStreamWaitEvent", event)?.marks();
        driver.context_of(stream.device as i32)?.submit(&stream, move || marks.iter().for_each(Mark::wait));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(handle: usize, function: HostFunction, data: *mut c_void) -> i32 {
    call("cuLaunchHostFunc", |driver| {
        let function = function.ok_or(code::INVALID_VALUE)?;
        let stream = driver.stream_at("cuLaunchHostFunc", handle)?;
        let data = data as usize;
        driver.context_of(stream.device as i32)?.submit(&stream, move || {
            // SAFETY: the caller promises a function that may be called with this on another thread.
            in_host_function(|| unsafe { function(data as *mut c_void) });
        });
        Ok(())
    })
}

/// Nothing is ever captured here.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(handle: usize, status: *mut i32) -> i32 {
    call("cuStreamIsCapturing", |driver| {
        driver.stream_at("cuStreamIsCapturing", handle)?;
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(status, 0) }
    })
}
