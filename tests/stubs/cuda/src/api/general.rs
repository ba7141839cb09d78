//! Starting, versions, errors, and functions by name.

use std::ffi::{CStr, c_char, c_void};

use super::put;
use crate::{
    code,
    driver::{call, driver},
};

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> i32 {
    call("cuInit", |driver| {
        if flags != 0 {
            return driver.refuse(code::INVALID_VALUE, format!("cuInit: flags {flags}"));
        }
        if driver.config().cuda.devices.is_empty() {
            return Err(100);
        }
        driver.initialize();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuDriverGetVersion", |driver| unsafe { put(version, driver.config().cuda.driver_version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: i32, name: *mut *const c_char) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuGetErrorName", |_| unsafe { put_text(name, code::described(error).map(|(name, _)| name)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: i32, text: *mut *const c_char) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuGetErrorString", |_| unsafe { put_text(text, code::described(error).map(|(_, text)| text)) })
}

/// Writes a text of an error; for an unknown one a null pointer, and the code that the driver gives then.
unsafe fn put_text(out: *mut *const c_char, text: Option<&'static [u8]>) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe { put(out, text.map_or(std::ptr::null(), |text| text.as_ptr().cast())) }?;
    text.map(|_| ()).ok_or(code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    out: *mut *mut c_void,
    _version: i32,
    _flags: u64,
) -> i32 {
    // SAFETY: the caller's pointers, as in C.
    call("cuGetProcAddress", |_| unsafe { put(out, address_of(symbol).ok_or(code::NOT_FOUND)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    out: *mut *mut c_void,
    _version: i32,
    _flags: u64,
    status: *mut i32,
) -> i32 {
    call("cuGetProcAddress", |_| {
        // SAFETY: the caller's pointer, as in C.
        let found = unsafe { address_of(symbol) };
        if !status.is_null() {
            // SAFETY: not null, and the caller's. 0 is found, 1 is not found.
            unsafe { status.write(i32::from(found.is_none())) };
        }
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(out, found.ok_or(code::NOT_FOUND)?) }
    })
}

/// A function of this library in the newest form that it has.
unsafe fn address_of(symbol: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the caller's string.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_str().ok()?;
    // SAFETY: it is this very library, which is loaded.
    let library = unsafe { libloading::Library::new(driver().double.folder().join("libcuda.so.1")) }.ok()?;
    let newest = [format!("{symbol}_v2\0"), format!("{symbol}\0")];
    // SAFETY: only the address is taken.
    newest
        .iter()
        .find_map(|name| unsafe { library.get::<*mut c_void>(name.as_bytes()) }.ok().map(|found| *found))
}
