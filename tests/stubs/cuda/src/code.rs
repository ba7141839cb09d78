//! The driver's result codes, as `cuda.h` has them.

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const NOT_PERMITTED: i32 = 800;
pub(crate) const NOT_SUPPORTED: i32 = 801;

/// A code's name and text, with their closing zero, where the double has the code.
pub(crate) fn described(code: i32) -> Option<(&'static [u8], &'static [u8])> {
    Some(match code {
        SUCCESS => (b"CUDA_SUCCESS\0", b"no error\0"),
        INVALID_VALUE => (b"CUDA_ERROR_INVALID_VALUE\0", b"invalid argument\0"),
        OUT_OF_MEMORY => (b"CUDA_ERROR_OUT_OF_MEMORY\0", b"out of memory\0"),
        NOT_INITIALIZED => (b"CUDA_ERROR_NOT_INITIALIZED\0", b"initialization error\0"),
        100 => (b"CUDA_ERROR_NO_DEVICE\0", b"no CUDA-capable device is detected\0"),
        INVALID_DEVICE => (b"CUDA_ERROR_INVALID_DEVICE\0", b"invalid device ordinal\0"),
        INVALID_CONTEXT => (b"CUDA_ERROR_INVALID_CONTEXT\0", b"invalid device context\0"),
        INVALID_HANDLE => (b"CUDA_ERROR_INVALID_HANDLE\0", b"invalid resource handle\0"),
        NOT_FOUND => (b"CUDA_ERROR_NOT_FOUND\0", b"named symbol not found\0"),
        NOT_READY => (b"CUDA_ERROR_NOT_READY\0", b"device not ready\0"),
        700 => (b"CUDA_ERROR_ILLEGAL_ADDRESS\0", b"an illegal memory access was encountered\0"),
        719 => (b"CUDA_ERROR_LAUNCH_FAILED\0", b"unspecified launch failure\0"),
        NOT_PERMITTED => (b"CUDA_ERROR_NOT_PERMITTED\0", b"operation not permitted\0"),
        NOT_SUPPORTED => (b"CUDA_ERROR_NOT_SUPPORTED\0", b"operation not supported\0"),
        803 => (
            b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\0",
            b"system has unsupported display driver / cuda driver combination\0",
        ),
        999 => (b"CUDA_ERROR_UNKNOWN\0", b"unknown error\0"),
        _ => return None,
    })
}
