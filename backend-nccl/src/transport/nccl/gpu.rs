//! A GPU with its primary context, which CubeCL computes in too.

use std::{
    ffi::{CStr, c_char},
    fmt,
    marker::PhantomData,
    sync::Arc,
};

use super::{
    driver::{Driver, Handle},
    refused::Refused,
};
use crate::{device_error::DeviceError, rendezvous::named_file};

/// The primary context of a GPU, kept alive.
pub(super) struct Gpu {
    pub(super) driver: Arc<Driver>,
    /// Its number in this process.
    pub(super) ordinal: usize,
    /// Its place on the bus, such as `00000000:3B:00.0`.
    pub(super) pci_bus_id: String,
    device: i32,
    context: Handle,
}

impl Gpu {
    /// Takes hold of the primary context of the GPU `ordinal`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSuchGpu`], or what the driver says.
    pub(super) fn retain(driver: Arc<Driver>, ordinal: usize) -> Result<Arc<Self>, DeviceError> {
        let failed = |refused: Refused| refused.device_error(ordinal);
        let functions = driver.functions;
        let mut visible = 0;
        if driver.has_gpus {
            // SAFETY: the result is a local.
            let code = unsafe { (functions.device_get_count)(&mut visible) };
            driver.check(code, "cuDeviceGetCount", "count the GPUs").map_err(failed)?;
        }
        let visible = usize::try_from(visible).unwrap_or(0);
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < visible).ok_or_else(|| {
            let filter = named_file("CUDA_VISIBLE_DEVICES").map(|value| value.display().to_string());
            DeviceError::NoSuchGpu { ordinal, visible, filter }
        })?;
        let mut device = 0;
        // SAFETY: the result is a local.
        let code = unsafe { (functions.device_get)(&mut device, number) };
        driver.check(code, "cuDeviceGet", "find its GPU").map_err(failed)?;
        let pci_bus_id = pci_bus_id(&driver, device).map_err(failed)?;
        let mut context = Handle(std::ptr::null_mut());
        // SAFETY: the result is a local; the context is released once, by the drop of what is made here.
        let code = unsafe { (functions.primary_ctx_retain)(&mut context.0, device) };
        driver.check(code, "cuDevicePrimaryCtxRetain", "take hold of its context").map_err(failed)?;
        Ok(Arc::new(Self { driver, ordinal, pci_bus_id, device, context }))
    }

    /// The context's handle.
    pub(super) fn context(&self) -> Handle {
        self.context
    }

    /// The bytes that are free. The context must be the thread's.
    pub(super) fn free_bytes(&self) -> Result<usize, Refused> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results are locals.
        let code = unsafe { (self.driver.functions.mem_get_info)(&mut free, &mut total) };
        self.driver.check(code, "cuMemGetInfo", "ask for its free memory").map(|()| free)
    }

    /// Makes the context that of this thread, which is one of ours, for good.
    pub(super) fn bind(&self) -> Result<(), Refused> {
        // SAFETY: the context lives as long as `self`, which the thread's owner keeps.
        let code = unsafe { (self.driver.functions.ctx_set_current)(self.context.0) };
        self.driver.check(code, "cuCtxSetCurrent", "use its context")
    }

    /// Makes the context that of this thread, which may be anybody's, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Refused> {
        let mut before = Handle(std::ptr::null_mut());
        // SAFETY: the result is a local.
        let code = unsafe { (self.driver.functions.ctx_get_current)(&mut before.0) };
        self.driver.check(code, "cuCtxGetCurrent", "ask for the thread's context")?;
        if before != self.context {
            self.bind()?;
        }
        Ok(Entered { gpu: self, before, of_this_thread: PhantomData })
    }
}

/// The primary context is this thread's.
pub(super) struct Entered<'a> {
    gpu: &'a Gpu,
    before: Handle,
    /// What a thread's context is cannot be put back by another.
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.before == self.gpu.context {
            return;
        }
        // SAFETY: the context was this thread's before, whose owner keeps it.
        let code = unsafe { (self.gpu.driver.functions.ctx_set_current)(self.before.0) };
        log_refusal(self.gpu.driver.check(code, "cuCtxSetCurrent", "put back the thread's context"));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and nothing of ours in it is left: streams and events hold it.
        let code = unsafe { (self.driver.functions.primary_ctx_release)(self.device) };
        log_refusal(self.driver.check(code, "cuDevicePrimaryCtxRelease", "let go of its context"));
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} at {}", self.ordinal, self.pci_bus_id)
    }
}

/// A refusal in a place that has nobody to tell, such as a destructor.
pub(super) fn log_refusal(outcome: Result<(), Refused>) {
    if let Err(refused) = outcome {
        log::debug!("{refused:?}");
    }
}

fn pci_bus_id(driver: &Driver, device: i32) -> Result<String, Refused> {
    let mut text: [c_char; 32] = [0; 32];
    // SAFETY: the text has the length that is given, and the driver ends it with a zero within.
    let code = unsafe { (driver.functions.device_get_pci_bus_id)(text.as_mut_ptr(), 32, device) };
    driver.check(code, "cuDeviceGetPCIBusId", "tell its GPU's place on the bus")?;
    text[31] = 0;
    // SAFETY: there is a zero within the array, which outlives the view.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}
