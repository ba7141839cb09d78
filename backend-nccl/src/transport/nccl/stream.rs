//! A stream of our own, that nothing on the default stream waits for.

use std::{ffi::c_uint, sync::Arc};

use super::{
    driver::{Handle, NOT_READY, OUT_OF_MEMORY},
    event::Event,
    gpu::{Gpu, log_refusal},
    refused::Refused,
};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// A stream. Its calls need the context to be the thread's.
#[derive(Debug)]
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    handle: Handle,
}

impl Stream {
    /// A stream of the greatest priority, so that a collective does not wait behind the computation that it overlaps with.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, Refused> {
        let (driver, functions) = (&gpu.driver, &gpu.driver.functions);
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the results are locals.
        let code = unsafe { (functions.ctx_get_stream_priority_range)(&mut least, &mut greatest) };
        driver.check(code, "cuCtxGetStreamPriorityRange", "ask for the priorities of streams")?;
        let mut handle = Handle(std::ptr::null_mut());
        // SAFETY: the result is a local; the stream is destroyed once, by the drop of what is made here.
        let code = unsafe { (functions.stream_create_with_priority)(&mut handle.0, NON_BLOCKING, greatest) };
        driver.check(code, "cuStreamCreateWithPriority", "make a stream")?;
        Ok(Self { gpu: gpu.clone(), handle })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// What is enqueued from now on waits for what the event has recorded.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), Refused> {
        let driver = &self.gpu.driver;
        // SAFETY: both handles live, and the driver keeps what it needs of the event.
        let code = unsafe { (driver.functions.stream_wait_event)(self.handle.0, event.handle().0, 0) };
        driver.check(code, "cuStreamWaitEvent", "let its stream wait for the computation")
    }

    /// The event records what has been enqueued so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), Refused> {
        let driver = &self.gpu.driver;
        // SAFETY: both handles live.
        let code = unsafe { (driver.functions.event_record)(event.handle().0, self.handle.0) };
        driver.check(code, "cuEventRecord", "mark the end of a collective")
    }

    /// Whether all that was enqueued has ended. A GPU that has failed does nothing more: that is an end too.
    pub(super) fn is_idle(&self) -> bool {
        // SAFETY: the stream lives.
        unsafe { (self.gpu.driver.functions.stream_query)(self.handle.0) != NOT_READY }
    }

    /// Copies on the device.
    ///
    /// # Safety
    ///
    /// Both ranges must be memory of this GPU until the stream has come to the copy's end.
    pub(super) unsafe fn copy(&self, to: u64, from: u64, len_bytes: usize) -> Result<(), Refused> {
        let driver = &self.gpu.driver;
        // SAFETY: the caller's promise.
        let code = unsafe { (driver.functions.memcpy_dtod_async)(to, from, len_bytes, self.handle.0) };
        driver.check(code, "cuMemcpyDtoDAsync", "copy tensors to a bucket")
    }

    /// Fills memory with one byte.
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy).
    pub(super) unsafe fn fill(&self, to: u64, value: u8, len_bytes: usize) -> Result<(), Refused> {
        let driver = &self.gpu.driver;
        // SAFETY: the caller's promise.
        let code = unsafe { (driver.functions.memset_d8_async)(to, value, len_bytes, self.handle.0) };
        driver.check(code, "cuMemsetD8Async", "fill memory")
    }

    /// Copies from the device to memory of the host.
    ///
    /// # Safety
    ///
    /// As [`copy`](Self::copy), for both sides.
    pub(super) unsafe fn read(&self, to: *mut u8, from: u64, len_bytes: usize) -> Result<(), Refused> {
        let driver = &self.gpu.driver;
        // SAFETY: the caller's promise.
        let code = unsafe { (driver.functions.memcpy_dtoh_async)(to.cast(), from, len_bytes, self.handle.0) };
        driver.check(code, "cuMemcpyDtoHAsync", "read memory")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let driver = &self.gpu.driver;
        // SAFETY: it is destroyed once; the driver lets what is enqueued end first.
        let code = unsafe { (driver.functions.stream_destroy)(self.handle.0) };
        log_refusal(driver.check(code, "cuStreamDestroy", "destroy its stream"));
    }
}

/// Memory on the GPU, for tests of it. Nothing on the device may use it when it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    gpu: Arc<Gpu>,
    pub(super) address: u64,
}

impl Memory {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: usize, purpose: &'static str) -> Result<Self, Refused> {
        let driver = &gpu.driver;
        let mut address = 0;
        // SAFETY: the result is a local; the memory is freed once, by the drop of what is made here.
        match unsafe { (driver.functions.mem_alloc)(&mut address, bytes) } {
            OUT_OF_MEMORY => return Err(Refused::Memory { bytes, purpose }),
            code => driver.check(code, "cuMemAlloc", "get memory")?,
        }
        Ok(Self { gpu: gpu.clone(), address })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let driver = &self.gpu.driver;
        // SAFETY: it is freed once, and its owner has seen to its end on the device.
        let code = unsafe { (driver.functions.mem_free)(self.address) };
        log_refusal(driver.check(code, "cuMemFree", "free memory"));
    }
}
