//! The few functions of the CUDA driver that are needed, with codes as numbers: a newer driver has codes that no list knows.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    sync::Arc,
};

use super::{
    candidates::Libraries,
    library::{Library, functions},
    refused::Refused,
};
use crate::{device_error::DeviceError, rendezvous::host_name};

const SUCCESS: i32 = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: i32 = 600;

/// A handle of the driver: a context, a stream or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) *mut c_void);

// SAFETY: the driver's functions take their handles from any thread; no memory of ours is behind them.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

functions! {
    /// The driver's functions, as `cuda.h` declares them.
    Functions {
        init: cuInit(c_uint) -> c_int;
        driver_get_version: cuDriverGetVersion(*mut c_int) -> c_int;
        device_get: cuDeviceGet(*mut c_int, c_int) -> c_int;
        device_get_count: cuDeviceGetCount(*mut c_int) -> c_int;
        device_get_pci_bus_id: cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> c_int;
        primary_ctx_retain: cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int) -> c_int;
        primary_ctx_release: cuDevicePrimaryCtxRelease_v2(c_int) -> c_int;
        ctx_get_current: cuCtxGetCurrent(*mut *mut c_void) -> c_int;
        ctx_set_current: cuCtxSetCurrent(*mut c_void) -> c_int;
        ctx_get_stream_priority_range: cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int) -> c_int;
        stream_create_with_priority: cuStreamCreateWithPriority(*mut *mut c_void, c_uint, c_int) -> c_int;
        stream_destroy: cuStreamDestroy_v2(*mut c_void) -> c_int;
        stream_query: cuStreamQuery(*mut c_void) -> c_int;
        stream_wait_event: cuStreamWaitEvent(*mut c_void, *mut c_void, c_uint) -> c_int;
        event_create: cuEventCreate(*mut *mut c_void, c_uint) -> c_int;
        event_destroy: cuEventDestroy_v2(*mut c_void) -> c_int;
        event_record: cuEventRecord(*mut c_void, *mut c_void) -> c_int;
        event_query: cuEventQuery(*mut c_void) -> c_int;
        mem_alloc: cuMemAlloc_v2(*mut u64, usize) -> c_int;
        mem_free: cuMemFree_v2(u64) -> c_int;
        mem_get_info: cuMemGetInfo_v2(*mut usize, *mut usize) -> c_int;
        memcpy_dtod_async: cuMemcpyDtoDAsync_v2(u64, u64, usize, *mut c_void) -> c_int;
        memcpy_dtoh_async: cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, *mut c_void) -> c_int;
        memset_d8_async: cuMemsetD8Async(u64, u8, usize, *mut c_void) -> c_int;
        get_error_name: cuGetErrorName(c_int, *mut *const c_char) -> c_int;
        } {
        ctx_record_event: cuCtxRecordEvent(*mut c_void, *mut c_void) -> c_int;
        ctx_wait_event: cuCtxWaitEvent(*mut c_void, *mut c_void) -> c_int;
    }
}

/// The CUDA driver, initialized.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// The newest CUDA that it supports, as `cuDriverGetVersion` gives it: 12040 is 12.4.
    pub(super) version: i32,
    /// Whether it has found any GPU. Without one it answers nothing more.
    pub(super) has_gpus: bool,
    path: PathBuf,
}

impl Driver {
    /// Loads and initializes the driver.
    ///
    /// # Errors
    ///
    /// [`DeviceError::LibraryMissing`], [`DeviceError::SymbolMissing`], or what the driver says of the machine. A driver
    /// without any GPU is no error yet.
    pub(super) fn load(libraries: &Libraries) -> Result<Arc<Self>, DeviceError> {
        const REMEDY: &str = "install the NVIDIA driver and see that nvidia-smi works (in a container: start it with --gpus \
                              all), name its library with BURN_NCCL_CUDA_LIBRARY, or set BURN_NCCL_DEVICE_TRANSPORT=host";
        let library = Library::open("the CUDA driver", &libraries.driver(), Vec::new(), REMEDY)?;
        let functions = Functions::find(&library)?;
        let mut driver = Self { functions, version: 0, has_gpus: true, path: library.path("cuInit") };
        // SAFETY: cuInit may be called at any time and more than once.
        let code = unsafe { (functions.init)(0) };
        if code == NO_DEVICE {
            driver.has_gpus = false;
        } else {
            driver.check(code, "cuInit", "start the driver").map_err(|refused| refused.device_error(0))?;
        }
        // SAFETY: the result is a local.
        let code = unsafe { (functions.driver_get_version)(&mut driver.version) };
        driver
            .check(code, "cuDriverGetVersion", "tell its version")
            .map_err(|refused| refused.device_error(0))?;
        log::debug!(
            "{} runs the CUDA driver {} for CUDA {}",
            host_name(),
            driver.path.display(),
            driver.cuda()
        );
        Ok(Arc::new(driver))
    }

    /// The newest CUDA that it supports, such as `12.4`.
    pub(super) fn cuda(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// What a code means.
    ///
    /// # Errors
    ///
    /// Any code but success.
    pub(super) fn check(&self, code: i32, call: &'static str, action: &'static str) -> Result<(), Refused> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Refused::Cuda { call, action, code, name: self.name_of(code) })
    }

    /// CUDA's name of a code.
    fn name_of(&self, code: i32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the result is a local; for a code that the driver does not know it stays null or becomes so.
        let known = unsafe { (self.functions.get_error_name)(code, &mut name) } == SUCCESS && !name.is_null();
        if !known {
            return "unknown to this driver".into();
        }
        // SAFETY: the driver's names are constants that end with a zero.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
