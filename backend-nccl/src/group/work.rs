//! An operation that runs on the communication thread.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::inside::GroupId;
use crate::{Error, Result};

/// An operation or a job under way on the communication thread: any of the `_async` calls of a
/// [`ProcessGroup`](super::ProcessGroup). It owns its buffers until [`wait`](Work::wait) gives them back.
///
/// Dropping it does not cancel the operation: the other ranks count on it.
#[must_use = "the buffers and a failure are lost unless `wait` is called"]
pub struct Work<B> {
    slot: Arc<Slot<B>>,
    group: GroupId,
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

/// A work of a group and the side that completes it.
pub(super) fn pair<B>(group: GroupId) -> (Work<B>, Completion<B>) {
    let slot = Arc::new(Slot { state: Mutex::new(State::Pending), changed: Condvar::new() });
    (Work { slot: slot.clone(), group }, Completion { slot })
}

impl<B> Work<B> {
    /// Waits for the end and returns the buffers, or what the job made.
    ///
    /// Each collective and message is under [`GroupOptions::timeout`](super::GroupOptions::timeout) from its turn on, and
    /// so are those before it. The wait has no limit of its own: a job that computes for an hour keeps the works behind
    /// it waiting, and one that never ends, for ever.
    ///
    /// # Errors
    ///
    /// As the call without `_async`, or what the job returned; the buffers are gone then, their contents would be
    /// undefined. [`Error::InsideJob`] in a job of the same group, for work behind it.
    pub fn wait(self) -> Result<B> {
        let state = self.lock();
        if matches!(*state, State::Pending) {
            self.group.must_be_outside("Work::wait")?;
        }
        let waited = self.slot.changed.wait_while(state, |state| matches!(state, State::Pending));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Gone) {
            State::Done(result, _) => result,
            State::Pending | State::Gone => {
                Err(Error::CommunicationThread { reason: "it ended without an answer".into() })
            }
        }
    }

    /// Whether the operation has ended, well or not.
    pub fn is_done(&self) -> bool {
        !matches!(*self.lock(), State::Pending)
    }

    /// How long the operation itself took, from its turn to its end; `None` while it is under way.
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
