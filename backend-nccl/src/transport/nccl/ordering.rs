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
/// Large enough that a reader which does not wait comes too early.
const TEST_BYTES: usize = 8 << 20;
const COPIES: usize = 8;
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
    let have = settings.variables.against_context_events().map_or_else(|| test(gpu, deadline), Err);
    match (have, wish) {
        (Ok(()), _) => Ok(StreamOrdering::ContextEvents),
        (Err(reason), StreamOrdering::Auto) => {
            log::info!("streams of GPU {} are ordered by the host: {reason}", gpu.ordinal);
            Ok(StreamOrdering::HostFence)
        }
        (Err(reason), _) => Err(DeviceError::Ordering { reason }),
    }
}

/// Why context events cannot be had, if they cannot.
fn test(gpu: &Arc<Gpu>, deadline: Deadline) -> Result<(), String> {
    let driver = &gpu.driver;
    let has_both = driver.functions.ctx_record_event.is_some() && driver.functions.ctx_wait_event.is_some();
    if driver.version < FIRST_DRIVER || !has_both {
        let cuda = driver.cuda();
        return Err(format!(
            "the driver, for CUDA {cuda}, has no context events, which come with that for 12.5"
        ));
    }
    let deadline = Deadline::after(TEST_LIMIT.min(deadline.remaining()));
    match orders(gpu, deadline) {
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
}

/// Lets one stream read what another writes, ordered by the context alone, in both ways.
fn orders(gpu: &Arc<Gpu>, deadline: Deadline) -> Result<Verdict, Refused> {
    let _entered = gpu.enter()?;
    let events = Events::new(gpu);
    let memory = |bytes| Memory::new(gpu, bytes, "a test of the driver");
    let bench = Bench {
        writer: Stream::new(gpu)?,
        reader: Stream::new(gpu)?,
        source: memory(TEST_BYTES)?,
        shared: memory(TEST_BYTES)?,
        seen: memory(1)?,
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
        let last = TEST_BYTES as u64 - 1;
        // SAFETY: `self` lives until `read` is reached, or for ever.
        unsafe {
            for _ in 0..COPIES {
                self.writer.copy(self.shared.address, self.source.address, TEST_BYTES)?;
            }
            self.writer.fill(self.shared.address, value, TEST_BYTES)?;
        }
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
        // SAFETY: as above.
        unsafe { self.reader.copy(self.seen.address, self.shared.address + last, 1) }?;
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
