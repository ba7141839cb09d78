//! Copies between the host and the GPUs: what is read and written when, as the driver documents it for each kind of memory.

use std::sync::Arc;

use crate::{
    code,
    driver::{Driver, Outcome, driver, need_current},
    memory::Bad,
    stream::Stream,
};

/// One side of a copy.
#[derive(Clone)]
pub(crate) enum Side {
    /// Memory of a GPU.
    Device(u64),
    /// Memory of the host, which may be pinned.
    Host(u64),
    /// Host memory that was not pinned, as it was when the copy was asked for.
    Staged(Arc<Vec<u8>>),
}

/// A copy of `height` rows of `width` bytes.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) function: &'static str,
    pub(crate) source: Side,
    pub(crate) source_pitch: usize,
    pub(crate) target: Side,
    pub(crate) target_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Copy {
    /// A copy of bytes that lie together.
    pub(crate) fn linear(function: &'static str, target: Side, source: Side, len: usize) -> Self {
        Self { function, source, source_pitch: len, target, target_pitch: len, width: len, height: 1 }
    }

    /// Appends it to a stream. Host memory that is not pinned is read now, and written before this returns; else both happen
    /// when the stream comes to it, unless the caller is to wait.
    pub(crate) fn submit(mut self, stream: &Arc<Stream>, wait: bool) -> Outcome {
        let driver = driver();
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        if self.height > 1 && (self.source_pitch < self.width || self.target_pitch < self.width) {
            return driver.refuse(code::INVALID_VALUE, format!("{}: rows that overlap", self.function));
        }
        self.check(driver).or_else(|text| driver.refuse(code::INVALID_VALUE, text))?;
        if let Side::Host(address) = self.source
            && driver.memory.kind_of(address).is_none()
        {
            // SAFETY: the caller promises host memory of the copy's extent.
            let bytes =
                unsafe { std::slice::from_raw_parts(address as *const u8, self.extent(self.source_pitch)) };
            self.source = Side::Staged(Arc::new(bytes.to_vec()));
        }
        let pageable = matches!(self.target, Side::Host(address) if driver.memory.kind_of(address).is_none());
        let context = driver.context_of(stream.device as i32)?;
        let mark = context.submit(stream, move || self.run());
        if wait || pageable {
            mark.wait();
        }
        Ok(())
    }

    /// The bytes from the first to the last one of a side.
    fn extent(&self, pitch: usize) -> usize {
        pitch * (self.height - 1) + self.width
    }

    fn check(&self, driver: &Driver) -> Result<(), String> {
        for (side, pitch, name) in
            [(&self.source, self.source_pitch, "from"), (&self.target, self.target_pitch, "to")]
        {
            let (address, known) = match side {
                Side::Device(address) => (*address, true),
                Side::Host(address) => (*address, driver.memory.kind_of(*address).is_some()),
                Side::Staged(_) => continue,
            };
            let len = self.extent(pitch);
            let bad = if known { driver.memory.check(address, len).err() } else { None };
            bad.map_or(Ok(()), |bad| {
                Err(format!("{}: {} {}", self.function, name, describe(&bad, address, len)))
            })?;
        }
        Ok(())
    }

    fn run(&self) {
        if let Err(text) = self.check(driver()) {
            return driver().double.fault(format!("{text}, when the stream came to it"));
        }
        let start = |side: &Side| match side {
            Side::Device(address) | Side::Host(address) => *address,
            Side::Staged(bytes) => bytes.as_ptr() as u64,
        };
        let (source, target) = (start(&self.source), start(&self.target));
        for row in 0..self.height {
            let from = source as usize + row * self.source_pitch;
            let to = target as usize + row * self.target_pitch;
            // SAFETY: device and pinned memory were found to hold the copy and are never given back while poisoning is on;
            // other host memory is the caller's, who waits for this.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, self.width) };
        }
    }
}

/// Appends a fill to a stream.
pub(crate) fn fill(
    function: &'static str,
    address: u64,
    value: u8,
    len: usize,
    stream: usize,
    wait: bool,
) -> Outcome {
    let driver = driver();
    let stream = driver.stream_at(function, stream)?;
    if len == 0 {
        return Ok(());
    }
    let checked = move || {
        driver
            .memory
            .check(address, len)
            .map_err(|bad| format!("{function}: {}", describe(&bad, address, len)))
    };
    checked().or_else(|text| driver.refuse(code::INVALID_VALUE, text))?;
    let mark = driver.context_of(stream.device as i32)?.submit(&stream, move || match checked() {
        // SAFETY: the memory was found to hold the fill, and is never given back while poisoning is on.
        Ok(()) => unsafe { (address as *mut u8).write_bytes(value, len) },
        Err(text) => driver.double.fault(format!("{text}, when the stream came to it")),
    });
    if wait {
        mark.wait();
    }
    Ok(())
}

/// A copy on the legacy stream that the caller waits for.
pub(crate) fn now(copy: Copy) -> Outcome {
    let context = need_current()?;
    copy.submit(&context.legacy, true)
}

pub(crate) fn describe(bad: &Bad, address: u64, len: usize) -> String {
    match bad {
        Bad::Freed => format!("{len} bytes at {address:#x}, which is freed"),
        Bad::Outside => format!("{len} bytes at {address:#x}, which is not within an allocation"),
    }
}
