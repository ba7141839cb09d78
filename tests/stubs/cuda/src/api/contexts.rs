//! Contexts: the primary one of each GPU, and which one is current on a thread.

use super::put;
use crate::{
    code,
    driver::{Driver, Outcome, call, current, need_current, pop_current, push_current, set_current},
    event::Stamp,
    stream::Mark,
};

/// The highest priority of a stream; the lowest is 0.
pub(super) const GREATEST_PRIORITY: i32 = -5;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(out: *mut usize, device: i32) -> i32 {
    call("cuDevicePrimaryCtxRetain", |driver| {
        let context = driver.context_of(device)?;
        // SAFETY: the caller's pointer, as in C.
        unsafe { put(out, context.handle) }?;
        context.retain();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    call("cuDevicePrimaryCtxRelease_v2", |driver| match driver.context_of(device)?.release() {
        true => Ok(()),
        false => driver.refuse(
            code::INVALID_CONTEXT,
            "cuDevicePrimaryCtxRelease_v2: released more often than retained".into(),
        ),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(handle: usize) -> i32 {
    call("cuCtxSetCurrent", |driver| {
        let context = if handle == 0 { None } else { Some(driver.context_at(handle)?) };
        set_current(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(out: *mut usize) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuCtxGetCurrent", |_| unsafe { put(out, current().map_or(0, |context| context.handle)) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(handle: usize) -> i32 {
    call("cuCtxPushCurrent_v2", |driver| {
        push_current(driver.context_at(handle)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(out: *mut usize) -> i32 {
    call("cuCtxPopCurrent_v2", |_| {
        let context = pop_current().ok_or(code::INVALID_CONTEXT)?;
        // SAFETY: the caller's pointer, as in C; null is allowed here.
        if out.is_null() { Ok(()) } else { unsafe { put(out, context.handle) } }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(out: *mut i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    call("cuCtxGetDevice", |_| unsafe { put(out, need_current()?.device as i32) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> i32 {
    call("cuCtxSynchronize", |_| {
        need_current()?.mark_all().iter().for_each(Mark::wait);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32 {
    call("cuCtxGetStreamPriorityRange", |_| {
        need_current()?;
        for (out, value) in [(least, 0), (greatest, GREATEST_PRIORITY)] {
            if !out.is_null() {
                // SAFETY: not null, and the caller's.
                unsafe { out.write(value) };
            }
        }
        Ok(())
    })
}

/// Captures what has been submitted to all streams of a context until now.
#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: usize, event: usize) -> i32 {
    call("cuCtxRecordEvent", |driver| {
        need_current()?;
        let context = driver.context_at(context)?;
        let event = driver.event_at("cuCtxRecordEvent", event)?;
        if event.device != context.device {
            return foreign(driver, "cuCtxRecordEvent");
        }
        let empty = driver.config().cuda.context_events_are_empty;
        event.set(if empty { Vec::new() } else { context.mark_all() }, Stamp::default());
        Ok(())
    })
}

/// Makes what is submitted to a context from now on wait for an event.
#[unsafe(no_mangle)]
extern "C" fn cuCtxWaitEvent(context: usize, event: usize) -> i32 {
    call("cuCtxWaitEvent", |driver| {
        need_current()?;
        let context = driver.context_at(context)?;
        context.wait_all(&driver.event_at("cuCtxWaitEvent", event)?.marks());
        Ok(())
    })
}

/// Refuses to record an event of another GPU's context.
pub(super) fn foreign(driver: &Driver, function: &str) -> Outcome {
    driver.refuse(code::INVALID_HANDLE, format!("{function}: the event is of another context"))
}
