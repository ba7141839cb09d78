//! The communication thread of a group: asynchronous collectives run there, in their order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use super::core::Core;
use crate::{Error, Result};

/// What the thread runs. It drops the guard when it has done all but to tell so.
pub(super) type Job = Box<dyn FnOnce(&Core, Busy) + Send>;

/// A job that has not been done.
#[derive(Debug)]
pub(super) struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The communication thread.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    pending: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(core: Arc<Core>) -> Result<Self> {
        let (jobs, queue): (Sender<Job>, Receiver<Job>) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = pending.clone();
        let serve = move || {
            for job in queue {
                // A panic comes from the buffer's `as_mut`; it has ended the group, and later jobs must hear of it.
                let busy = Busy(left.clone());
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&core, busy)));
            }
        };
        let thread = std::thread::Builder::new()
            .name("burn-nccl-comm".into())
            .spawn(serve)
            .map_err(|error| Error::CommunicationThread { reason: error.to_string() })?;
        Ok(Self { jobs, pending, thread })
    }

    /// Ends the thread after its last job.
    ///
    /// Waits for it only when it has nothing left to do, so that the group says goodbye here and not on a thread that the
    /// end of the process cuts off. Work that nobody waits for goes on alone under its deadline, as dropping a group does
    /// not wait for peers. The thread itself may hold the last handle, in a buffer, and must not
    /// wait for itself.
    pub(super) fn finish(self) {
        let Self { jobs, pending, thread } = self;
        drop(jobs);
        if pending.load(Ordering::Acquire) == 0 && thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }

    /// The worker of a group, started by the first call.
    pub(super) fn start_once<'a>(worker: &'a mut Option<Self>, core: &Arc<Core>) -> Result<&'a Self> {
        match worker {
            Some(worker) => Ok(worker),
            None => Ok(worker.insert(Self::start(core.clone())?)),
        }
    }

    pub(super) fn submit(&self, job: Job) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        self.jobs.send(job).expect("the communication thread lives as long as its queue");
    }
}
