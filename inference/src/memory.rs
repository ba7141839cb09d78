//! What the allocator keeps.

/// Gives back to the system what was freed.
///
/// Engines take weights in, transform and free them, and then the file is freed, which leaves several times the network
/// in holes that the allocator keeps: a ResNet-50 in ONNX Runtime holds 398 MB without this and 161 MB with it.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function takes any number, and returns pages to the system that no allocation is in.
    unsafe {
        libc::malloc_trim(0);
    }
}
