//! Events of the driver, which serve again and again.

use std::{
    ffi::c_uint,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    driver::{Handle, NOT_READY},
    gpu::{Gpu, log_refusal},
    refused::Refused,
};

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: c_uint = 2;

/// The events of one communicator.
#[derive(Debug)]
pub(super) struct Events {
    gpu: Arc<Gpu>,
    free: Mutex<Vec<Handle>>,
}

/// An event. It goes back when it is dropped, even while a stream has yet to come to it: a wait is for what the event had
/// recorded when the wait was enqueued.
#[derive(Debug)]
pub(super) struct Event {
    home: Arc<Events>,
    handle: Handle,
}

impl Events {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Arc<Self> {
        Arc::new(Self { gpu: gpu.clone(), free: Mutex::default() })
    }

    /// An event that is free, or a new one. From any thread.
    pub(super) fn take(self: &Arc<Self>) -> Result<Event, Refused> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let handle = match free {
            Some(handle) => handle,
            None => self.make()?,
        };
        Ok(Event { home: self.clone(), handle })
    }

    /// How many are free, for tests of what is left behind.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn make(&self) -> Result<Handle, Refused> {
        let _entered = self.gpu.enter()?;
        let driver = &self.gpu.driver;
        let mut handle = Handle(std::ptr::null_mut());
        // SAFETY: the result is a local; the event is destroyed once, by the drop of its home.
        let code = unsafe { (driver.functions.event_create)(&mut handle.0, WITHOUT_TIMING) };
        driver.check(code, "cuEventCreate", "make an event").map(|()| handle)
    }
}

impl Event {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether the device has come to what the event has recorded.
    pub(super) fn is_reached(&self) -> Result<bool, Refused> {
        let driver = &self.home.gpu.driver;
        // SAFETY: the event lives.
        match unsafe { (driver.functions.event_query)(self.handle.0) } {
            NOT_READY => Ok(false),
            code => driver.check(code, "cuEventQuery", "see the end of a collective").map(|()| true),
        }
    }

    /// Records all that has been submitted to the context so far. From any thread; not while a graph is captured, which
    /// it would spoil.
    pub(super) fn record_context(&self) -> Result<(), Refused> {
        let gpu = &self.home.gpu;
        let _entered = gpu.enter()?;
        let Some(record) = gpu.driver.functions.ctx_record_event else {
            return Err(absent("cuCtxRecordEvent"));
        };
        // SAFETY: both handles live.
        let code = unsafe { record(gpu.context().0, self.handle.0) };
        gpu.driver.check(code, "cuCtxRecordEvent", "mark what has been computed so far")
    }

    /// All that is submitted to the context from now on waits for what the event has recorded. From any thread.
    pub(super) fn hold_context(&self) -> Result<(), Refused> {
        let gpu = &self.home.gpu;
        let _entered = gpu.enter()?;
        let Some(wait) = gpu.driver.functions.ctx_wait_event else { return Err(absent("cuCtxWaitEvent")) };
        // SAFETY: both handles live, and the driver keeps what it needs of the event.
        let code = unsafe { wait(gpu.context().0, self.handle.0) };
        gpu.driver.check(code, "cuCtxWaitEvent", "let the computation wait for a collective")
    }
}

fn absent(call: &'static str) -> Refused {
    // `CUDA_ERROR_NOT_SUPPORTED`.
    let (code, name) = (801, "the driver lacks it".into());
    Refused::Cuda { call, action: "order streams by context events", code, name }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.home.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.handle);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let driver = &self.gpu.driver;
        let entered = self.gpu.enter();
        for handle in self.free.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: each is destroyed once. An event that is in use holds its home, so that all are back here.
            let code = unsafe { (driver.functions.event_destroy)(handle.0) };
            log_refusal(driver.check(code, "cuEventDestroy", "destroy an event"));
        }
        log_refusal(entered.map(drop));
    }
}
