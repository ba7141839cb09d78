//! A collective that runs on the communication thread.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::{Error, Result};

/// An all-reduce under way. It owns its buffer until [`wait`](Work::wait) gives it back.
///
/// Dropping it does not cancel the collective: the other ranks count on it.
#[must_use = "the buffer and a failure are lost unless `wait` is called"]
pub struct Work<B> {
    slot: Arc<Slot<B>>,
}

struct Slot<B> {
    state: Mutex<State<B>>,
    changed: Condvar,
}

enum State<B> {
    Pending,
    Done(Result<B>, Duration),
    /// The communication thread ended without an answer.
    Gone,
}

/// The side that completes a [`Work`]; dropping it without an answer wakes the waiter with an error.
pub(super) struct Completion<B> {
    slot: Arc<Slot<B>>,
}

/// A work and the side that completes it.
pub(super) fn pair<B>() -> (Work<B>, Completion<B>) {
    let slot = Arc::new(Slot { state: Mutex::new(State::Pending), changed: Condvar::new() });
    (Work { slot: slot.clone() }, Completion { slot })
}

impl<B> Work<B> {
    /// Waits for the end and returns the reduced buffer. The collective itself is under the group's deadline.
    ///
    /// # Errors
    ///
    /// As [`ProcessGroup::all_reduce`](super::ProcessGroup::all_reduce); the buffer is gone then, its contents would
    /// be undefined.
    pub fn wait(self) -> Result<B> {
        let state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.slot.changed.wait_while(state, |state| matches!(state, State::Pending));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Gone) {
            State::Done(result, _) => result,
            State::Pending | State::Gone => {
                Err(Error::CommunicationThread { reason: "it ended without an answer".into() })
            }
        }
    }

    /// Whether the collective has ended, well or not.
    pub fn is_done(&self) -> bool {
        !matches!(*self.lock(), State::Pending)
    }

    /// How long the collective itself took, from its turn to its end; `None` while it is under way.
    pub fn duration(&self) -> Option<Duration> {
        match &*self.lock() {
            State::Done(_, duration) => Some(*duration),
            State::Pending | State::Gone => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<B>> {
        self.slot.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> fmt::Debug for Work<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<B> Completion<B> {
    pub(super) fn complete(self, result: Result<B>, duration: Duration) {
        self.set(State::Done(result, duration));
    }

    fn set(&self, new: State<B>) {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Pending) {
            *state = new;
        }
        drop(state);
        self.slot.changed.notify_all();
    }
}

impl<B> Drop for Completion<B> {
    fn drop(&mut self) {
        self.set(State::Gone);
    }
}
