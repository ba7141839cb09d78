//! The thread that writes checkpoints while training goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::failure::{CheckpointFailure, Result};
use super::folder::Folder;
use super::snapshot::Snapshot;

/// A thread that writes one checkpoint at a time. It is one and the same for all of them, since a device keeps memory for
/// each thread that reads from it.
pub(super) struct Writer {
    /// None once the thread is to end.
    snapshots: Option<SyncSender<Snapshot>>,
    outcomes: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
    /// When the checkpoint that is being written was handed over.
    started: Option<Instant>,
    limit: Duration,
}

impl Writer {
    /// Starts the thread, which holds `folder` for as long as it runs: no other training may write to it before.
    pub(super) fn start(mut folder: Folder, limit: Duration) -> std::io::Result<Self> {
        let (snapshots, incoming) = sync_channel::<Snapshot>(1);
        let (outgoing, outcomes) = sync_channel(1);
        let work = move || {
            for snapshot in incoming {
                let outcome = catch_unwind(AssertUnwindSafe(|| folder.write(snapshot)));
                let outcome = outcome.unwrap_or_else(|panic| {
                    Err(CheckpointFailure::Panicked { message: message_of(panic.as_ref()) })
                });
                if outgoing.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint writer".into()).spawn(work)?;
        Ok(Self { snapshots: Some(snapshots), outcomes, thread: Some(thread), started: None, limit })
    }

    /// Hands a checkpoint over; the one before it must have ended.
    pub(super) fn write(&mut self, snapshot: Snapshot) {
        debug_assert!(self.started.is_none(), "one checkpoint at a time");
        self.started = Some(Instant::now());
        if let Some(snapshots) = &self.snapshots {
            // A thread that is gone shows when its outcome is waited for.
            let _ = snapshots.send(snapshot);
        }
    }

    /// How the last checkpoint ended, `Ok` where there is none; none itself if it has not after `patience`.
    pub(super) fn outcome(&mut self, patience: Duration) -> Option<Result<()>> {
        let Some(started) = self.started else { return Some(Ok(())) };
        let left = self.limit.saturating_sub(started.elapsed());
        match self.outcomes.recv_timeout(patience.min(left)) {
            Ok(outcome) => {
                self.started = None;
                Some(outcome)
            }
            Err(RecvTimeoutError::Timeout) if started.elapsed() < self.limit => None,
            // It stays the one that is being written: nothing else can be.
            Err(RecvTimeoutError::Timeout) => {
                Some(Err(CheckpointFailure::TimedOut { seconds: self.limit.as_secs() }))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(CheckpointFailure::Panicked { message: "it ended".into() }))
            }
        }
    }
}

impl Drop for Writer {
    /// Lets the checkpoint that is being written end, for what is left of its time.
    fn drop(&mut self) {
        self.snapshots = None;
        if let Some(started) = self.started {
            let left = self.limit.saturating_sub(started.elapsed());
            match self.outcomes.recv_timeout(left) {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => log::error!("the last checkpoint was not saved: {failure}"),
                Err(_) => return log::error!("the last checkpoint was still being written at the end"),
            }
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").into()
}
