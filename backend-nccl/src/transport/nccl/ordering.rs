//! How the communicator's stream is ordered with the computation, and the test of what the driver promises for it.

use std::{sync::Arc, time::Duration};

use super::{
    engine::Settings,
    event::{Event, Events},
    gpu::Gpu,
    refused::Refused,
    stream::{Memory, Stream},
};
use crate::{deadline::Deadline, device_error::DeviceError, transport::StreamOrdering};

/// The first driver with context events, as `cuDriverGetVersion` gives it.
const FIRST_DRIVER: i32 = 12050;
/// What the test moves at a time: more than the caches of a GPU hold, so that a reader which does not wait comes too early.
pub(crate) const TEST_BYTES: usize = 64 << 20;
/// The part of the free memory that the test takes at most, twice.
const SHARE: usize = 512;
const LEAST_BYTES: usize = 1 << 20;
const COPIES: usize = 16;
const ROUNDS: u8 = 2;
/// What is submitted to the context by others is waited for too.
const TEST_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_micros(100);

/// The ordering to use.
///
/// # Errors
///
/// [`DeviceError::Ordering`] for context events that cannot be had.
pub(super) fn resolve(
    settings: &Settings,
    gpu: &Arc<Gpu>,
    deadline: Deadline,
) -> Result<StreamOrdering, DeviceError> {
    let wish = settings.ordering;
    if wish == StreamOrdering::HostFence {
        return Ok(wish);
    }
    let known = settings.variables.against_context_events().or_else(|| absent(gpu));
    let is_known = known.is_some();
    let Some(reason) = known.or_else(|| test(gpu, settings.test_bytes, deadline).err()) else {
        return Ok(StreamOrdering::ContextEvents);
    };
    if wish != StreamOrdering::Auto {
        return Err(DeviceError::Ordering { reason });
    }
    let text = format!("streams of GPU {} are ordered by the host: {reason}", gpu.ordinal);
    match is_known {
        true => log::info!("{text}"),
        // It costs a wait in every step, and the next start may be without it.
        false => log::warn!("{text}"),
    }
    Ok(StreamOrdering::HostFence)
}

/// Why the driver has no context events, if so.
fn absent(gpu: &Gpu) -> Option<String> {
    let driver = &gpu.driver;
    let has_both = driver.functions.ctx_record_event.is_some() && driver.functions.ctx_wait_event.is_some();
    (driver.version < FIRST_DRIVER || !has_both).then(|| {
        let cuda = driver.cuda();
        format!("the driver, for CUDA {cuda}, has no context events, which come with that for 12.5")
    })
}

/// Why context events are not to be used, if they do not order as the driver promises.
fn test(gpu: &Arc<Gpu>, bytes: usize, deadline: Deadline) -> Result<(), String> {
    let deadline = Deadline::after(TEST_LIMIT.min(deadline.remaining()));
    match orders(gpu, bytes, deadline) {
        Ok(Verdict::Kept) => Ok(()),
        Ok(Verdict::Broken(what)) => {
            Err(format!("{what} did not wait in a test of the driver's context events"))
        }
        Ok(Verdict::Unknown) => {
            Err(format!("a test of the driver's context events did not end within {:.1?}", deadline.limit()))
        }
        Err(refused) => Err(format!("a test of the driver's context events failed: {refused:?}")),
    }
}

enum Verdict {
    Kept,
    /// Who came too early.
    Broken(&'static str),
    Unknown,
}

/// What the test works with.
struct Bench {
    writer: Stream,
    reader: Stream,
    source: Memory,
    shared: Memory,
    seen: Memory,
    bytes: usize,
}

/// Lets one stream read what another writes, ordered by the context alone, in both ways.
fn orders(gpu: &Arc<Gpu>, bytes: usize, deadline: Deadline) -> Result<Verdict, Refused> {
    let _entered = gpu.enter()?;
    let bytes = bytes.min(gpu.free_bytes()? / SHARE).max(LEAST_BYTES);
    let events = Events::new(gpu);
    let memory = |bytes| Memory::new(gpu, bytes, "a test of the driver");
    let bench = Bench {
        writer: Stream::new(gpu)?,
        reader: Stream::new(gpu)?,
        source: memory(bytes)?,
        shared: memory(bytes)?,
        seen: memory(1)?,
        bytes,
    };
    for round in 0..ROUNDS {
        for by_context in [Order::Record, Order::Wait] {
            let value = 2 * round + 1 + u8::from(matches!(by_context, Order::Wait));
            match bench.round(&events, by_context, value, deadline) {
                Ok(Verdict::Kept) => {}
                Ok(Verdict::Broken(what)) => return Ok(Verdict::Broken(what)),
                outcome => {
                    // The device may still use it.
                    std::mem::forget(bench);
                    return outcome;
                }
            }
        }
    }
    Ok(Verdict::Kept)
}

/// Which half of the order comes from the context.
#[derive(Clone, Copy)]
enum Order {
    Record,
    Wait,
}

impl Bench {
    fn round(
        &self,
        events: &Arc<Events>,
        order: Order,
        value: u8,
        deadline: Deadline,
    ) -> Result<Verdict, Refused> {
        let (written, read) = (events.take()?, events.take()?);
        self.write(value)?;
        match order {
            Order::Record => {
                written.record_context()?;
                self.reader.wait_for(&written)?;
            }
            Order::Wait => {
                self.writer.record(&written)?;
                written.hold_context()?;
            }
        }
        let last = self.shared.address + self.bytes as u64 - 1;
        // SAFETY: `self` lives until `read` is reached, or for ever.
        unsafe { self.reader.copy(self.seen.address, last, 1) }?;
        self.reader.record(&read)?;
        let found = match self.value_after(&read, deadline)? {
            Some(found) => found,
            None => return Ok(Verdict::Unknown),
        };
        // What the reader did not wait for must have ended before the memory is used again.
        self.writer.record(&written)?;
        if !reached(&written, deadline)? {
            return Ok(Verdict::Unknown);
        }
        Ok(match (found == value, order) {
            (true, _) => Verdict::Kept,
            (false, Order::Record) => Verdict::Broken("cuCtxRecordEvent"),
            (false, Order::Wait) => Verdict::Broken("cuCtxWaitEvent"),
        })
    }

    /// Lets the writer write the value at the end of much else.
    fn write(&self, value: u8) -> Result<(), Refused> {
        // SAFETY: `self` lives until the writer is done, or for ever.
        unsafe {
            for _ in 0..COPIES {
                self.writer.copy(self.shared.address, self.source.address, self.bytes)?;
            }
            self.writer.fill(self.shared.address, value, self.bytes)
        }
    }

    /// What the reader has seen; `None` where it has not come to it in time.
    fn value_after(&self, read: &Event, deadline: Deadline) -> Result<Option<u8>, Refused> {
        if !reached(read, deadline)? {
            return Ok(None);
        }
        // On the heap, for the case that the device comes to it when nobody waits any more.
        let mut found = Box::new(0);
        // SAFETY: both sides live until the stream is done, or for ever.
        unsafe { self.reader.read(&raw mut *found, self.seen.address, 1) }?;
        self.reader.record(read)?;
        if !reached(read, deadline)? {
            std::mem::forget(found);
            return Ok(None);
        }
        Ok(Some(*found))
    }
}

fn reached(event: &Event, deadline: Deadline) -> Result<bool, Refused> {
    while !event.is_reached()? {
        if deadline.expired() {
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
    Ok(true)
}
