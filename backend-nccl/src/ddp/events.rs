//! What happened in a step, in order: for tests, and for looking at the overlap.

use std::sync::{Arc, Mutex, PoisonError};

/// One thing that happened on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DdpEvent {
    /// The gradient of this trainable parameter (counted in visit order) reached its bucket.
    GradientReady(usize),
    /// The all-reduce of this bucket was handed to the communication thread.
    BucketLaunched(usize),
    /// The result of this bucket was waited for and is there.
    BucketReduced(usize),
    /// A mark of the caller's own, such as "backward of layer 1".
    Mark(String),
}

/// A shared log of events. Clones write to the same log; it is off until [`start`](Self::start).
#[derive(Clone, Debug, Default)]
pub struct EventLog(Arc<Mutex<Option<Vec<DdpEvent>>>>);

impl EventLog {
    /// Starts an empty log.
    pub fn start(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Stops the log and returns what it holds.
    pub fn stop(&self) -> Vec<DdpEvent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Adds a mark of the caller's own.
    pub fn mark(&self, name: impl Into<String>) {
        self.push(DdpEvent::Mark(name.into()));
    }

    pub(crate) fn push(&self, event: DdpEvent) {
        if let Some(events) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            events.push(event);
        }
    }
}
