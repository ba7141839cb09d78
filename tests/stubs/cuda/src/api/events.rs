//! Events of one stream. Those of a whole context are with the contexts.

use std::{sync::Arc, time::Instant};

use stubs::lock;

use super::{contexts::foreign, put};
use crate::{
    code,
    driver::{call, need_current},
    event::{Event, Stamp},
    stream::Mark,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(out: *mut usize, flags: u32) -> i32 {
    call("cuEventCreate", |driver| {
        if flags > 7 {
            return driver.refuse(code::INVALID_VALUE, format!("cuEventCreate: flags {flags}"));
        }
        let handle = driver.add_event(Event::new(need_current()?.device, flags));
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(out, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> i32 {
    call("cuEventRecord", |driver| {
        let stream = driver.stream_at("cuEventRecord", stream)?;
        let event = driver.event_at("cuEventRecord", event)?;
        if event.device != stream.device {
            return foreign(driver, "cuEventRecord");
        }
        let time = Stamp::default();
        let stamp = Arc::clone(&time);
        let mark = driver
            .context_of(stream.device as i32)?
            .submit(&stream, move || *lock(&stamp) = Some(Instant::now()));
        event.set(vec![mark], time);
        Ok(())
    })
}

/// No context need be current: an event knows its own.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> i32 {
    call("cuEventQuery", |driver| match driver.event_at("cuEventQuery", event)?.is_done() {
        true => Ok(()),
        false => Err(code::NOT_READY),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> i32 {
    call("cuEventSynchronize", |driver| {
        driver.event_at("cuEventSynchronize", event)?.marks().iter().for_each(Mark::wait);
        Ok(())
    })
}

/// Who waits for it goes on waiting for what it has captured.
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> i32 {
    call("cuEventDestroy_v2", |driver| match driver.remove_event(event) {
        Some(_) => Ok(()),
        None => driver.refuse(code::INVALID_HANDLE, format!("cuEventDestroy_v2: no event {event:#x}")),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: usize, end: usize) -> i32 {
    call("cuEventElapsedTime", |driver| {
        let (start, end) =
            (driver.event_at("cuEventElapsedTime", start)?, driver.event_at("cuEventElapsedTime", end)?);
        if !start.is_timed() || !end.is_timed() {
            return driver.refuse(code::INVALID_HANDLE, "cuEventElapsedTime: an event without timing".into());
        }
        if !start.is_done() || !end.is_done() {
            return Err(code::NOT_READY);
        }
        let (Some(start), Some(end)) = (start.time(), end.time()) else { return Err(code::INVALID_HANDLE) };
        let elapsed = end.saturating_duration_since(start).as_secs_f32() * 1e3;
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(ms, elapsed) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, start: usize, end: usize) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    unsafe { cuEventElapsedTime(ms, start, end) }
}
