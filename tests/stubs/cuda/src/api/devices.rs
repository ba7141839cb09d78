//! What GPUs there are.

use std::ffi::c_char;

use stubs::Device;

use super::put;
use crate::{
    code,
    driver::{Driver, Outcome, call},
};

/// The GPU of an ordinal; its handle is the ordinal.
fn device(driver: &Driver, ordinal: i32) -> Outcome<Device> {
    let devices = &driver.config().cuda.devices;
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| devices.get(ordinal).cloned())
        .ok_or(code::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuDeviceGetCount", |driver| unsafe { put(count, driver.config().cuda.devices.len() as i32) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(out: *mut i32, ordinal: i32) -> i32 {
    call("cuDeviceGet", |driver| {
        device(driver, ordinal)?;
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(out, ordinal) }
    })
}

/// Writes a text with its closing zero to a buffer of the caller, cut to what fits.
unsafe fn put_name(out: *mut c_char, len: i32, text: &str) -> Outcome {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).ok_or(code::INVALID_VALUE)?;
    let text = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: the caller's buffer has `len` bytes, and the text with its zero is not longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, handle: i32) -> i32 {
    // SAFETY: the caller's buffer, as in C.
    call("cuDeviceGetName", |driver| unsafe { put_name(name, len, &device(driver, handle)?.name) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, handle: i32) -> i32 {
    // SAFETY: the caller's buffer, as in C.
    call("cuDeviceGetPCIBusId", |driver| unsafe { put_name(id, len, &device(driver, handle)?.pci_bus_id) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, handle: i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuDeviceTotalMem_v2", |driver| unsafe { put(bytes, device(driver, handle)?.memory_bytes as usize) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], handle: i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuDeviceGetUuid", |driver| unsafe { put(uuid, device(driver, handle)?.uuid) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], handle: i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuDeviceGetUuid_v2", |driver| unsafe { put(uuid, device(driver, handle)?.uuid) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, handle: i32) -> i32 {
    call("cuDeviceGetAttribute", |driver| {
        let found = attribute_of(&device(driver, handle)?, attribute);
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(value, found) }
    })
}

/// An attribute by its number in `cuda.h`: those of a Hopper GPU, and 0 for what the double does not have.
fn attribute_of(device: &Device, attribute: i32) -> i32 {
    let pci = |range: std::ops::Range<usize>| {
        device.pci_bus_id.get(range).and_then(|text| i32::from_str_radix(text, 16).ok()).unwrap_or(0)
    };
    match attribute {
        // Threads of a block, its dimensions, those of a grid.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        // Shared memory of a block, constant memory, threads of a warp, pitch, registers, clock.
        8 => 49152,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 => 65536,
        13 => 1_980_000,
        // Multiprocessors; the place on the bus; one address space for host and devices.
        16 => 132,
        33 => pci(5..7),
        34 => pci(8..10),
        50 => pci(0..4),
        40 | 41 => 1,
        75 => device.compute_capability.0,
        76 => device.compute_capability.1,
        // Stream priorities; shared memory of a block where asked for; memory pools.
        78 => 1,
        97 => 232_448,
        115 => 1,
        _ => 0,
    }
}
