//! How far the operations of a communicator have come, for those that wait.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    operation::{DeviceCall, DeviceOperation},
    tally::{Needs, Tally},
};
use crate::{deadline::Deadline, failure::Failure, transport::DType};

/// The state of a communicator's operations, which are numbered from 1 in the order of their starts.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    /// For those that wait for an operation.
    changed: Condvar,
    /// For the watchdog, when there is something to watch.
    watched: Condvar,
}

#[derive(Debug, Default)]
struct State {
    started: u64,
    enqueued: u64,
    ended: u64,
    /// Those that have started and not ended.
    pending: VecDeque<Pending>,
    tally: Tally,
    failure: Option<Failure>,
    /// By when the communicator must have been left.
    leaving: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    deadline: Deadline,
    summary: Summary,
    needs: Needs,
}

/// How far an operation must have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The device has it.
    Enqueued,
    /// The device is done with it, and nothing holds its memory any more.
    Ended,
}

/// An operation in words.
#[derive(Clone, Copy, Debug)]
struct Summary {
    name: &'static str,
    dtype: DType,
    bytes: usize,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        // It guards plain values that are valid at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers an operation.
    ///
    /// # Errors
    ///
    /// The failure that has ended the communicator.
    pub(super) fn start(&self, call: &DeviceCall, deadline: Deadline) -> Result<u64, Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.started += 1;
        let number = state.started;
        let (summary, needs) = (Summary::of(call), state.tally.count(&call.operation));
        state.pending.push_back(Pending { number, deadline, summary, needs });
        if state.pending.len() == 1 {
            self.watched.notify_all();
        }
        Ok(number)
    }

    /// Notes that the device has all up to this one.
    pub(super) fn enqueued(&self, number: u64) {
        self.lock().enqueued = number;
        self.changed.notify_all();
    }

    /// Notes that all up to this one have ended.
    pub(super) fn ended(&self, number: u64) {
        let mut state = self.lock();
        state.ended = number;
        state.forget(number);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that nothing more comes of all up to this one.
    pub(super) fn given_up(&self, number: u64) {
        self.lock().forget(number);
    }

    /// Keeps the failure that ended the communicator, the first one only, and wakes all. Returns the first.
    pub(super) fn fail(&self, failure: Failure) -> Failure {
        let first = self.lock().failure.get_or_insert(failure).clone();
        self.changed.notify_all();
        self.watched.notify_all();
        first
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// Waits until an operation has come to `stage`. The thread that owns the communicator, or the watchdog, ends it by its
    /// deadline; `deadline` is only for the case that neither does.
    ///
    /// # Errors
    ///
    /// The failure that has ended the communicator, or `None` by the deadline.
    pub(super) fn wait(&self, number: u64, stage: Stage, deadline: Deadline) -> Result<(), Option<Failure>> {
        let mut state = self.lock();
        loop {
            // First: what has ended before a failure is as it should be.
            if state.ended >= number {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                return Err(Some(failure.clone()));
            }
            if stage == Stage::Enqueued && state.enqueued >= number {
                return Ok(());
            }
            if deadline.expired() {
                return Err(None);
            }
            let waited = self.changed.wait_timeout(state, deadline.remaining());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The failure of the oldest operation whose deadline has passed, if there is one.
    pub(super) fn overdue(&self) -> Option<Failure> {
        let state = self.lock();
        let Pending { deadline, summary, .. } =
            state.pending.front().filter(|pending| pending.deadline.expired())?;
        Some(Failure::Stalled { operation: summary.to_string(), limit: deadline.limit() })
    }

    /// What this rank has called so far.
    pub(super) fn tally(&self) -> Tally {
        self.lock().tally.clone()
    }

    /// Whether an operation of `rank` needs what a rank that leaves with this tally has not done.
    pub(super) fn needs_more(&self, leaver: usize, tally: &Tally, rank: usize) -> bool {
        self.lock().pending.iter().any(|pending| !tally.meets(pending.needs, leaver, rank))
    }

    /// Whether the communicator should have been left by now.
    pub(super) fn lingers(&self) -> bool {
        self.lock().leaving.is_some_and(|by| by <= Instant::now())
    }

    /// Notes that the communicator is being left, within a limit.
    pub(super) fn leaving(&self, limit: Duration) {
        self.lock().leaving = Some(Instant::now() + limit);
        self.watched.notify_all();
    }

    /// Notes that the communicator has been left.
    pub(super) fn closed(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        self.watched.notify_all();
    }

    /// Waits until the communicator has been left, for `limit` beyond the deadlines of its operations. Whether it has.
    pub(super) fn wait_closed(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        let pending = state.pending.back().map_or(Duration::ZERO, |pending| pending.deadline.remaining());
        let deadline = Deadline::after(pending.saturating_add(limit));
        while !state.closed && !deadline.expired() {
            let waited = self.changed.wait_timeout(state, deadline.remaining());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.closed
    }

    /// Waits for the next look of the watchdog: `pause` while there is something to watch, else until there is. `false` at
    /// the end.
    pub(super) fn wait_to_watch(&self, pause: Duration) -> bool {
        let mut state = self.lock();
        while !state.closed && state.pending.is_empty() && state.leaving.is_none() {
            state = self.watched.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.closed {
            let waited = self.watched.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.closed
    }
}

impl State {
    fn forget(&mut self, number: u64) {
        while self.pending.front().is_some_and(|pending| pending.number <= number) {
            self.pending.pop_front();
        }
    }
}

impl Summary {
    fn of(call: &DeviceCall) -> Self {
        let len = |region: &super::Region| region.len_bytes;
        let (name, bytes) = match &call.operation {
            DeviceOperation::AllReduce { send, .. } => ("all_reduce", len(send)),
            DeviceOperation::Broadcast { send, .. } => ("broadcast", len(send)),
            DeviceOperation::AllGather { send, .. } => ("all_gather", len(send)),
            DeviceOperation::ReduceScatter { recv, .. } => ("reduce_scatter", len(recv)),
            DeviceOperation::AllToAll { send, .. } => ("all_to_all", len(send)),
            DeviceOperation::Exchange { send, receive } => {
                ("message", send.iter().chain(receive).map(|(region, _)| len(region)).sum())
            }
            DeviceOperation::Bucket { bucket, .. } => ("all_reduce of a bucket", len(bucket)),
        };
        Self { name, dtype: call.dtype, bytes }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} elements of {}", self.name, self.bytes / self.dtype.size_bytes(), self.dtype)
    }
}
