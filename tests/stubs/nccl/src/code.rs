//! NCCL's result codes, as `nccl.h` has them.

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: i32 = 1;
pub(crate) const SYSTEM_ERROR: i32 = 2;
pub(crate) const INVALID_ARGUMENT: i32 = 4;
pub(crate) const INVALID_USAGE: i32 = 5;
pub(crate) const REMOTE_ERROR: i32 = 6;
pub(crate) const IN_PROGRESS: i32 = 7;

/// What `ncclGetErrorString` says, with its closing zero.
pub(crate) fn text(code: i32) -> &'static [u8] {
    match code {
        SUCCESS => b"no error\0",
        UNHANDLED_CUDA_ERROR => b"unhandled cuda error (run with NCCL_DEBUG=INFO for details)\0",
        SYSTEM_ERROR => b"unhandled system error (run with NCCL_DEBUG=INFO for details)\0",
        3 => b"internal error - please report this issue to the NCCL developers\0",
        INVALID_ARGUMENT => b"invalid argument (run with NCCL_DEBUG=WARN for details)\0",
        INVALID_USAGE => b"invalid usage (run with NCCL_DEBUG=WARN for details)\0",
        REMOTE_ERROR => b"remote process exited or there was a network error\0",
        IN_PROGRESS => b"NCCL operation in progress\0",
        8 => b"operation timed out\0",
        _ => b"unknown result code\0",
    }
}
