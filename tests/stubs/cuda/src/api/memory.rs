//! Memory of the GPUs and pinned memory of the host.

use std::ffi::c_void;

use super::put;
use crate::{
    code,
    driver::{Driver, Outcome, call, need_current},
    memory::Kind,
    stream::Mark,
};

unsafe fn allocate(driver: &Driver, out: *mut u64, len: usize, device: usize) -> Outcome {
    if len == 0 {
        return driver.refuse(code::INVALID_VALUE, "an allocation of no bytes".into());
    }
    let capacity = driver.config().cuda.devices.get(device).map_or(0, |device| device.memory_bytes);
    let address = driver.memory.allocate(len, Kind::Device(device), capacity).ok_or(code::OUT_OF_MEMORY)?;
    // SAFETY: the caller's promise.
    unsafe { put(out, address) }
}

fn free(driver: &Driver, function: &str, address: u64, pinned: bool) -> Outcome {
    let freed = driver.memory.free(address, pinned, driver.config().cuda.poison);
    freed.or_else(|reason| driver.refuse(code::INVALID_VALUE, format!("{function}: {reason}")))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, len: usize) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuMemAlloc_v2", |driver| unsafe { allocate(driver, out, len, need_current()?.device) })
}

/// Frees at once, whatever still runs, unless it is told to wait.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    call("cuMemFree_v2", |driver| {
        let context = need_current()?;
        if driver.config().cuda.free_waits {
            context.mark_all().iter().for_each(Mark::wait);
        }
        free(driver, "cuMemFree_v2", address, false)
    })
}

/// The memory is there at once, and not first when the stream comes to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(out: *mut u64, len: usize, stream: usize) -> i32 {
    call("cuMemAllocAsync", |driver| {
        let stream = driver.stream_at("cuMemAllocAsync", stream)?;
        // SAFETY: the caller's pointer, as in C.
        unsafe { allocate(driver, out, len, stream.device) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> i32 {
    call("cuMemFreeAsync", |driver| {
        let stream = driver.stream_at("cuMemFreeAsync", stream)?;
        driver.context_of(stream.device as i32)?.submit(&stream, move || {
            // The fault is recorded; the caller has gone on.
            free(driver, "cuMemFreeAsync", address, false).unwrap_or_default();
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    call("cuMemGetInfo_v2", |driver| {
        let device = need_current()?.device;
        let capacity = driver.config().cuda.devices.get(device).map_or(0, |device| device.memory_bytes);
        let left = capacity.saturating_sub(driver.memory.used(Kind::Device(device)));
        // SAFETY: the caller's pointers, as in C.
        unsafe { put(free, left as usize).and_then(|()| put(total, capacity as usize)) }
    })
}

unsafe fn pin(driver: &Driver, out: *mut *mut c_void, len: usize) -> Outcome {
    need_current()?;
    let address = driver.memory.allocate(len, Kind::Pinned, u64::MAX).ok_or(code::OUT_OF_MEMORY)?;
    // SAFETY: the caller's promise.
    unsafe { put(out, address as *mut c_void) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(out: *mut *mut c_void, len: usize) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuMemAllocHost_v2", |driver| unsafe { pin(driver, out, len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(out: *mut *mut c_void, len: usize, _flags: u32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuMemHostAlloc", |driver| unsafe { pin(driver, out, len) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: *mut c_void) -> i32 {
    call("cuMemFreeHost", |driver| free(driver, "cuMemFreeHost", address as u64, true))
}
