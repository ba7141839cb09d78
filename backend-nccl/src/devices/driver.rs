//! The GPUs that the CUDA driver shows this process, by ordinal. Only the driver knows them for sure.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::gpu::sysfs_bus_id;
use crate::DeviceError;
use crate::transport::nccl::{Libraries, Library};

/// Longer than any name of a GPU, and than any place on the bus.
const TEXT_BYTES: usize = 128;
/// `CUDA_ERROR_NO_DEVICE`: there is no GPU, or all are hidden.
const NO_DEVICE: c_int = 100;

/// A GPU as the driver shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverGpu {
    /// With the prefix `GPU-`, also for an instance.
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) pci_bus_id: String,
}

/// What the driver answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverView {
    /// The newest CUDA that it supports, as 1000 times the major version and 10 times the minor one.
    pub(super) cuda_version: i32,
    /// By ordinal.
    pub(super) gpus: Vec<DriverGpu>,
}

/// The functions of the driver that are needed here. All return a `CUresult`, 0 for success.
struct Driver {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    bus_id: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    uuid: unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int,
}

/// Asks the driver (`cuInit`, which makes no context and takes no memory, then `cuDeviceGet…`).
///
/// # Errors
///
/// In words, why it does not answer.
pub(super) fn ask() -> Result<DriverView, String> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    let load = || Driver::load(&Libraries::from_environment().driver());
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)?.view()
}

/// As [`ask`], of the first of these libraries that can be loaded. It stays loaded.
#[cfg(test)]
pub(super) fn ask_library(libraries: &[&str]) -> Result<DriverView, String> {
    Driver::load(&libraries.iter().map(PathBuf::from).collect::<Vec<_>>())?.view()
}

impl Driver {
    fn load(candidates: &[PathBuf]) -> Result<Self, String> {
        const REMEDY: &str = "install the NVIDIA driver, or name its library with BURN_NCCL_CUDA_LIBRARY";
        let library = Library::open("the CUDA driver", candidates, Vec::new(), REMEDY);
        library.and_then(|library| Self::functions(&library)).map_err(|error| error.to_string())
    }

    fn functions(library: &Library) -> Result<Self, DeviceError> {
        // SAFETY: the types are those of cuda.h (CUDA 12; the driver keeps them for the names without a suffix too).
        unsafe {
            Ok(Self {
                init: library.required("cuInit")?,
                version: library.required("cuDriverGetVersion")?,
                count: library.required("cuDeviceGetCount")?,
                get: library.required("cuDeviceGet")?,
                name: library.required("cuDeviceGetName")?,
                bus_id: library.required("cuDeviceGetPCIBusId")?,
                // The second one tells MIG instances of one GPU apart; drivers before 11.4 have the first one only.
                uuid: library
                    .required("cuDeviceGetUuid_v2")
                    .or_else(|_| library.required("cuDeviceGetUuid"))?,
            })
        }
    }

    fn view(&self) -> Result<DriverView, String> {
        let (mut cuda_version, mut count) = (0, 0);
        // SAFETY: the flags must be 0.
        let code = unsafe { (self.init)(0) };
        if code == NO_DEVICE {
            return Ok(DriverView::default());
        }
        checked("cuInit", code)?;
        // SAFETY: both pointers are to integers that live through the calls.
        unsafe {
            checked("cuDriverGetVersion", (self.version)(&mut cuda_version))?;
            checked("cuDeviceGetCount", (self.count)(&mut count))?;
        }
        let gpus = (0..count).map(|ordinal| self.gpu(ordinal)).collect::<Result<_, _>>()?;
        Ok(DriverView { cuda_version, gpus })
    }

    fn gpu(&self, ordinal: c_int) -> Result<DriverGpu, String> {
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: the pointers are to an integer and to the 16 bytes of a CUuuid, which live through the calls.
        unsafe {
            checked("cuDeviceGet", (self.get)(&mut device, ordinal))?;
            checked("cuDeviceGetUuid", (self.uuid)(&mut uuid, device))?;
        }
        let name = text("cuDeviceGetName", |buffer, bytes| {
            // SAFETY: `text` gives a buffer of that many bytes.
            unsafe { (self.name)(buffer, bytes, device) }
        })?;
        let bus_id = text("cuDeviceGetPCIBusId", |buffer, bytes| {
            // SAFETY: `text` gives a buffer of that many bytes.
            unsafe { (self.bus_id)(buffer, bytes, device) }
        })?;
        Ok(DriverGpu { uuid: uuid_text(uuid), name, pci_bus_id: sysfs_bus_id(&bus_id) })
    }
}

fn text(function: &str, fill: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, String> {
    let mut buffer = [0u8; TEXT_BYTES];
    checked(function, fill(buffer.as_mut_ptr().cast(), TEXT_BYTES as c_int))?;
    let text =
        CStr::from_bytes_until_nul(&buffer).map_err(|_| format!("{function} gave a text without an end"))?;
    Ok(text.to_string_lossy().into_owned())
}

fn checked(function: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{function} failed: CUDA error {code}")),
    }
}

/// The bytes of a `CUuuid` as `nvidia-smi -L` writes them.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes =
            [0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 0x41, 0x06, 0xc1, 0x2f, 0x20, 0xbd, 0x9f, 0xae, 0xd9, 0xf6];
        assert_eq!(uuid_text(bytes), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
    }

    #[test]
    fn a_code_other_than_success_is_an_error_with_the_function() {
        assert_eq!(checked("cuInit", 0), Ok(()));
        assert_eq!(checked("cuInit", 999), Err("cuInit failed: CUDA error 999".to_owned()));
    }
}
