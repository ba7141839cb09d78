//! `ncclConfig_t`, as far as all versions from 2.17 have it.

use std::ffi::c_char;

use crate::{
    code,
    library::{Outcome, library},
};

/// `NCCL_CONFIG_UNDEF_INT`.
const UNSET: i32 = i32::MIN;
const MAGIC: u32 = 0xcafe_beef;
/// The sizes that the structure has had, up to the first that is checked whole: 2.14, 2.17, 2.18.
const SIZES: [usize; 2] = [24, 40];
const WHOLE_BYTES: usize = 48;
/// More than any version has had.
const MOST_BYTES: usize = 256;

#[repr(C)]
pub(crate) struct Configuration {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cga_cluster_size: i32,
    min_ctas: i32,
    max_ctas: i32,
    net_name: *const c_char,
    split_share: i32,
}

/// Whether the caller wants a blocking communicator. A null pointer is a configuration of defaults.
///
/// # Safety
///
/// `configuration` is null or valid for as many bytes as it says.
pub(crate) unsafe fn blocking(configuration: *const Configuration) -> Outcome<bool> {
    if configuration.is_null() {
        return Ok(true);
    }
    // SAFETY: the caller's promise: every version starts with these.
    let (size, magic, version) =
        unsafe { ((*configuration).size, (*configuration).magic, (*configuration).version) };
    let wrong =
        |what: String| library().refuse(code::INVALID_ARGUMENT, format!("ncclCommInitRankConfig: {what}"));
    if magic != MAGIC {
        return wrong(format!("the configuration's magic is {magic:#x} and not {MAGIC:#x}"));
    }
    if !SIZES.contains(&size) && !(WHOLE_BYTES..=MOST_BYTES).contains(&size) {
        return wrong(format!("no version has a configuration of {size} bytes"));
    }
    if !(21400..=29999).contains(&version) {
        return wrong(format!("{version} is no version that has a configuration"));
    }
    if size >= WHOLE_BYTES && version >= 21700 {
        // SAFETY: it has all of these fields.
        let all = unsafe { &*configuration };
        let share = [UNSET, 0, 1].contains(&all.split_share);
        let clusters = all.cga_cluster_size == UNSET || (0..=8).contains(&all.cga_cluster_size);
        let ctas = [all.min_ctas, all.max_ctas].iter().all(|&ctas| ctas == UNSET || ctas > 0);
        if !share || !clusters || !ctas {
            return wrong("a field is neither set as it may be nor unset".into());
        }
        if !all.net_name.is_null() {
            return wrong("a network is named, and the double has none".into());
        }
    }
    // SAFETY: every version has it.
    match unsafe { (*configuration).blocking } {
        UNSET | 1 => Ok(true),
        0 => Ok(false),
        other => wrong(format!("blocking is {other}")),
    }
}
