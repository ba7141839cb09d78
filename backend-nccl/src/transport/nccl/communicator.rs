//! A communicator of NCCL: who may call it when, and how it ends.
//!
//! One thread calls it. Another may abort it, also while that one is inside NCCL: the only call that others may make then,
//! and the only way out of one that does not return.

use std::{
    ffi::c_void,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    api::{Api, Config, Functions, IN_PROGRESS, SUCCESS, UniqueId},
    driver::Handle,
    refused::Refused,
};

/// A communicator that may have been aborted.
pub(super) struct Communicator {
    api: Arc<Api>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// NCCL's own; none before it is made and after its end.
    handle: Option<Handle>,
    aborted: bool,
    /// Since when its thread has been in a call that others may have to end.
    inside: Option<Instant>,
}

/// A communicator for the length of one call.
#[derive(Clone, Copy)]
pub(super) struct Comm(Handle);

impl Comm {
    pub(super) fn raw(self) -> *mut c_void {
        self.0.0
    }
}

impl Communicator {
    pub(super) fn new(api: Arc<Api>) -> Self {
        Self { api, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It guards plain values that are valid at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to make it, with all other ranks: [`is_settled`](Self::is_settled) tells the end.
    ///
    /// # Errors
    ///
    /// NCCL's refusal.
    pub(super) fn begin(&self, world_size: usize, id: UniqueId, rank: usize) -> Result<(), Refused> {
        const CALL: (&str, &str) = ("ncclCommInitRankConfig", "make its communicator");
        let number = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
        // NCCL 2.17 reads the handle from its place on a thread of its own while it makes the communicator, and nothing tells
        // for sure when that thread has ended where it fails. So the place, of one pointer, is never freed.
        let place: &'static AtomicPtr<c_void> = Box::leak(Box::default());
        self.lock().inside = Some(Instant::now());
        // SAFETY: the result's place lives for ever, and the configuration has the size that it states.
        let code = unsafe {
            let init = self.api.functions.comm_init_rank_config;
            init(place.as_ptr(), number(world_size), id, number(rank), &Config::NON_BLOCKING)
        };
        let handle = Handle(place.load(Ordering::Acquire));
        let mut state = self.lock();
        state.inside = None;
        state.handle = Some(handle).filter(|handle| !handle.0.is_null());
        drop(state);
        self.api.check(code, CALL.0, CALL.1)
    }

    /// Calls NCCL with the communicator. Only its thread comes here.
    ///
    /// # Errors
    ///
    /// [`Refused::Ended`] once it has been aborted, even during the call; NCCL's refusal.
    pub(super) fn call(
        &self,
        call: &'static str,
        action: &'static str,
        function: impl FnOnce(&Functions, Comm) -> i32,
    ) -> Result<(), Refused> {
        let comm = self.enter()?;
        let code = function(&self.api.functions, comm);
        self.leave()?;
        self.api.check(code, call, action)
    }

    fn enter(&self) -> Result<Comm, Refused> {
        let mut state = self.lock();
        let handle = state.handle.ok_or(Refused::Ended)?;
        state.inside = Some(Instant::now());
        Ok(Comm(handle))
    }

    fn leave(&self) -> Result<(), Refused> {
        let mut state = self.lock();
        state.inside = None;
        if state.aborted { Err(Refused::Ended) } else { Ok(()) }
    }

    /// Waits for something else, in a way that cannot be ended from here: others see that this thread looks at nothing.
    pub(super) fn away<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lock().inside = Some(Instant::now());
        let outcome = wait();
        self.lock().inside = None;
        outcome
    }

    /// Whether what was called last has ended; with what NCCL has met meanwhile on its own.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub(super) fn is_settled(&self, action: &'static str) -> Result<bool, Refused> {
        const CALL: &str = "ncclCommGetAsyncError";
        let mut code = SUCCESS;
        self.call(CALL, action, |functions, comm| {
            // SAFETY: the communicator lives for the length of the call, and the result is a local.
            unsafe { (functions.comm_get_async_error)(comm.raw(), &mut code) }
        })?;
        self.api.check(code, CALL, action).map(|()| code != IN_PROGRESS)
    }

    /// Whether its thread has been in one call for longer than `limit`.
    pub(super) fn is_stuck(&self, limit: Duration) -> bool {
        self.lock().inside.is_some_and(|since| since.elapsed() > limit)
    }

    /// Aborts it, unless it has ended already. From any thread.
    pub(super) fn abort(&self) {
        let handle = {
            let mut state = self.lock();
            state.aborted = true;
            state.handle.take()
        };
        let Some(handle) = handle else { return };
        // SAFETY: it was taken out, so nobody else ends it, and no further call begins with it.
        let code = unsafe { (self.api.functions.comm_abort)(handle.0) };
        if let Err(refused) = self.api.check(code, "ncclCommAbort", "abort its communicator") {
            log::warn!("{refused:?}");
        }
    }

    /// Destroys it, after it has been finalized.
    pub(super) fn destroy(&self) -> Result<(), Refused> {
        let handle = self.lock().handle.take().ok_or(Refused::Ended)?;
        // SAFETY: as in `abort`.
        let code = unsafe { (self.api.functions.comm_destroy)(handle.0) };
        self.api.check(code, "ncclCommDestroy", "destroy its communicator")
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a communicator of NCCL {}", self.api.version)
    }
}
