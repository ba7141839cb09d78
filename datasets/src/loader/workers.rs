//! Threads that load an epoch's batches ahead of the consumer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::batch::{Epoch, HostBatch};
use crate::{DataError, Scratch};

type Loaded = Result<HostBatch, DataError>;

/// Workers of one epoch: worker w loads batches w, w + N, w + 2N, ... into a bounded channel of its own,
/// so the consumer gets them in order by asking the channels in turn.
///
/// Dropping it ends the threads: a full channel that loses its receiver refuses the batch at once, and
/// a thread that is loading looks at `stop` before each image. The threads are not joined, because a
/// read from a storage that does not answer must not keep the training loop.
pub(super) struct Workers {
    channels: Vec<Receiver<Loaded>>,
    stop: Arc<AtomicBool>,
    timeout: Duration,
}

impl Workers {
    /// Starts `count` threads that load `first..end`.
    pub(super) fn start(
        epoch: &Arc<Epoch>,
        [first, end]: [usize; 2],
        count: usize,
        prefetch: usize,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = Self { channels: Vec::with_capacity(count), stop, timeout };
        for worker in 0..count {
            let (sender, receiver) = sync_channel(prefetch.max(1));
            let (epoch, stop) = (epoch.clone(), workers.stop.clone());
            let batches = (first + worker..end).step_by(count);
            thread::Builder::new()
                .name(format!("data-worker-{worker}"))
                .spawn(move || run(&epoch, batches, &sender, &stop))?;
            workers.channels.push(receiver);
        }
        Ok(workers)
    }

    /// Waits for the `nth` batch since the start, which is number `batch` of the epoch.
    pub(super) fn receive(&self, nth: usize, batch: usize) -> Loaded {
        let channel = &self.channels[nth % self.channels.len()];
        channel.recv_timeout(self.timeout).unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Timeout => DataError::Timeout { batch, seconds: self.timeout.as_secs() },
                RecvTimeoutError::Disconnected => {
                    DataError::WorkerPanic { batch, message: "the worker ended early".into() }
                }
            })
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Loads the batches until one fails or nobody wants them any more.
fn run(epoch: &Epoch, batches: impl Iterator<Item = usize>, sender: &SyncSender<Loaded>, stop: &AtomicBool) {
    let mut scratch = Scratch::default();
    for batch in batches {
        let Some(loaded) = epoch.load(batch, &mut scratch, || stop.load(Ordering::Relaxed)) else { return };
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}
