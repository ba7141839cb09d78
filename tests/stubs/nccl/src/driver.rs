//! What NCCL's double needs of the driver's: memory that is live, and a stream's thread.

use std::{ffi::c_void, path::Path};

use libloading::Library;

use crate::{
    code,
    library::{Outcome, library},
};

type Hosted = unsafe extern "C" fn(*mut c_void);

/// The functions of the driver's double that no driver has.
pub(crate) struct Driver {
    check: extern "C" fn(u64, usize) -> i32,
    current_device: extern "C" fn() -> i32,
    stream_device: extern "C" fn(usize) -> i32,
    enqueue: unsafe extern "C" fn(usize, Hosted, *mut c_void) -> i32,
    _library: Library,
}

impl Driver {
    /// The double in a folder; the same instance as that of everybody else who loads it from there.
    pub(crate) fn load(folder: &Path) -> Result<Self, String> {
        let path = folder.join("libcuda.so.1");
        // SAFETY: the double runs nothing when it is loaded.
        let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string())?;
        // SAFETY: the types are those of the double's functions of these names, which live as long as the library.
        unsafe {
            Ok(Self {
                check: *library.get(b"stub_cuda_check\0").map_err(|error| error.to_string())?,
                current_device: *library
                    .get(b"stub_cuda_current_device\0")
                    .map_err(|error| error.to_string())?,
                stream_device: *library
                    .get(b"stub_cuda_stream_device\0")
                    .map_err(|error| error.to_string())?,
                enqueue: *library.get(b"stub_cuda_enqueue\0").map_err(|error| error.to_string())?,
                _library: library,
            })
        }
    }

    /// Why a region is no live device memory, if it is none.
    pub(crate) fn check(&self, address: u64, len: usize) -> Result<(), String> {
        match (self.check)(address, len) {
            0 => Ok(()),
            1 => Err(format!("{len} bytes at {address:#x}, which is freed")),
            _ => Err(format!("{len} bytes at {address:#x}, which is not within an allocation")),
        }
    }

    /// The ordinal of the current context's GPU; -1 where there is none.
    pub(crate) fn current_device(&self) -> i32 {
        (self.current_device)()
    }

    /// The ordinal of a stream's GPU; -1 where there is no such stream.
    pub(crate) fn stream_device(&self, stream: usize) -> i32 {
        (self.stream_device)(stream)
    }

    /// Appends work to a stream.
    pub(crate) fn enqueue(&self, stream: usize, work: impl FnOnce() + Send + 'static) -> Outcome {
        let work: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(work));
        let data = Box::into_raw(work);
        // SAFETY: `run` takes what was boxed above, once.
        match unsafe { (self.enqueue)(stream, run, data.cast()) } {
            0 => Ok(()),
            refused => {
                // SAFETY: the driver has refused it, so nobody else has it.
                drop(unsafe { Box::from_raw(data) });
                library().refuse(
                    code::UNHANDLED_CUDA_ERROR,
                    format!("stream {stream:#x} takes nothing: code {refused}"),
                )
            }
        }
    }
}

/// Does what was appended.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: `enqueue` has made it, and the driver calls this once.
    let work: Box<Box<dyn FnOnce() + Send>> = unsafe { Box::from_raw(data.cast()) };
    work();
}
