//! Copies and fills.

use std::ffi::c_void;

use crate::{
    code,
    copy::{Copy, Side, fill, now},
    driver::{Outcome, call, driver},
};

/// `CUDA_MEMCPY2D`, as `cuda.h` lays it out.
#[repr(C)]
struct Memcpy2d {
    source_x_bytes: usize,
    source_y: usize,
    source_type: u32,
    source_host: u64,
    source_device: u64,
    source_array: u64,
    source_pitch: usize,
    target_x_bytes: usize,
    target_y: usize,
    target_type: u32,
    target_host: u64,
    target_device: u64,
    target_array: u64,
    target_pitch: usize,
    width_bytes: usize,
    height: usize,
}

fn later(copy: Copy, stream: usize) -> Outcome {
    let stream = driver().stream_at(copy.function, stream)?;
    copy.submit(&stream, false)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(target: u64, source: *const c_void, len: usize, stream: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyHtoDAsync_v2", Side::Device(target), Side::Host(source as u64), len);
    call(copy.function, |_| later(copy, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(target: *mut c_void, source: u64, len: usize, stream: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyDtoHAsync_v2", Side::Host(target as u64), Side::Device(source), len);
    call(copy.function, |_| later(copy, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, len: usize, stream: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyDtoDAsync_v2", Side::Device(target), Side::Device(source), len);
    call(copy.function, |_| later(copy, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(target: u64, source: *const c_void, len: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyHtoD_v2", Side::Device(target), Side::Host(source as u64), len);
    call(copy.function, |_| now(copy))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(target: *mut c_void, source: u64, len: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyDtoH_v2", Side::Host(target as u64), Side::Device(source), len);
    call(copy.function, |_| now(copy))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(target: u64, source: u64, len: usize) -> i32 {
    let copy = Copy::linear("cuMemcpyDtoD_v2", Side::Device(target), Side::Device(source), len);
    call(copy.function, |_| now(copy))
}

/// Between host and GPU, or on a GPU; no arrays.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Memcpy2d, stream: usize) -> i32 {
    const FUNCTION: &str = "cuMemcpy2DAsync_v2";
    call(FUNCTION, |driver| {
        // SAFETY: the caller's pointer, as in C; null is refused.
        let copy = unsafe { copy.as_ref() }.ok_or(code::INVALID_VALUE)?;
        let side = |kind: u32, host: u64, device: u64, offset: usize| match kind {
            1 => Ok(Side::Host(host + offset as u64)),
            2 => Ok(Side::Device(device + offset as u64)),
            kind => driver.refuse(code::INVALID_VALUE, format!("{FUNCTION}: memory of type {kind}")),
        };
        let source_offset = copy.source_y * copy.source_pitch + copy.source_x_bytes;
        let target_offset = copy.target_y * copy.target_pitch + copy.target_x_bytes;
        let copy = Copy {
            function: FUNCTION,
            source: side(copy.source_type, copy.source_host, copy.source_device, source_offset)?,
            source_pitch: copy.source_pitch,
            target: side(copy.target_type, copy.target_host, copy.target_device, target_offset)?,
            target_pitch: copy.target_pitch,
            width: copy.width_bytes,
            height: copy.height,
        };
        later(copy, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, len: usize, stream: usize) -> i32 {
    call("cuMemsetD8Async", |_| fill("cuMemsetD8Async", address, value, len, stream, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: u64, value: u8, len: usize) -> i32 {
    call("cuMemsetD8_v2", |_| fill("cuMemsetD8_v2", address, value, len, 0, true))
}
