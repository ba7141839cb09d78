//! One communicator, seen from the group.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use super::{
    candidates::Libraries,
    ending::Ending,
    event::Event,
    leave,
    operation::{DeviceCall, Fence},
    progress::Stage,
    refused::Refused,
    setup::{self, Running},
    shared::Shared,
    thread::{Order, Ready, SETTLE_LIMIT},
    variables::Variables,
};
use crate::{
    Result,
    deadline::Deadline,
    failure::Failure,
    transport::{StreamOrdering, Transport},
};

/// Beyond an operation's deadline, for the threads that keep it.
const SLACK: Duration = Duration::from_secs(10);

/// What an engine is made with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Which of the communicators that the group makes this is, the same on all ranks.
    pub(crate) number: u64,
    /// The CUDA ordinal of this rank's GPU.
    pub(crate) ordinal: usize,
    pub(crate) ordering: StreamOrdering,
    /// The limit of one operation, from its start on this rank.
    pub(crate) timeout: Duration,
    /// Which files are loaded.
    pub(crate) libraries: Libraries,
    /// What the environment tells NCCL.
    pub(crate) variables: Variables,
    /// How much the test of context events moves at a time.
    pub(crate) test_bytes: usize,
}

/// A communicator of a group on one GPU, with the thread that owns it.
pub(crate) struct Nccl {
    pub(super) shared: Arc<Shared>,
    /// To the owner; its end is the communicator's.
    queue: Mutex<Option<mpsc::Sender<Order>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ordering: StreamOrdering,
    version: String,
}

/// An operation that has been handed over.
#[must_use = "the computation does not wait for it unless `join` is called"]
pub(crate) struct Flight {
    shared: Arc<Shared>,
    number: u64,
    done: Arc<Event>,
    deadline: Deadline,
    ordering: StreamOrdering,
}

impl Nccl {
    /// Compares what the ranks have (libraries, driver, GPUs) and makes the communicator. All ranks of `group` come here.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device), the same on every rank, before any communicator is made;
    /// [`Error::SetUp`](crate::Error::SetUp) by the deadline, which ends the group.
    pub(crate) fn connect(group: Arc<dyn Transport>, settings: Settings, deadline: Deadline) -> Result<Self> {
        let Running { shared, queue, threads, ordering, version } =
            setup::connect(group, settings, deadline)?;
        let (queue, threads) = (Mutex::new(Some(queue)), Mutex::new(threads));
        Ok(Self { shared, queue, threads, ordering, version })
    }

    /// Hands an operation over, in the order of the calls. With context events the point that the device waits for is now;
    /// else `fence` is made now and waited for by the communication thread.
    ///
    /// # Errors
    ///
    /// The failure that has ended the group.
    pub(crate) fn start(&self, call: DeviceCall, fence: impl FnOnce() -> Fence) -> Result<Flight, Failure> {
        // Held until the operation is in the queue, so that the order of the numbers is that of the queue.
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Deadline::after(self.shared.timeout);
        let ended = self.shared.end_of_group().map_or(Ok(()), |failure| Err(self.shared.fail(failure)));
        let events =
            || self.events(fence).map_err(|refused| self.shared.fail(self.shared.failure_of(refused)));
        let begun = ended
            .and_then(|()| events())
            .and_then(|events| Ok((events, self.shared.progress.start(&call, deadline)?)));
        let DeviceCall { operation, dtype, keep, on_start, on_end } = call;
        let ending = Ending { keep, on_end };
        let ((ready, done), number) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                ending.run(Some(&failure));
                return Err(failure);
            }
        };
        let order = Order { number, operation, dtype, ready, done: done.clone(), on_start, ending };
        let refused = match queue.as_ref() {
            Some(queue) => queue.send(order).err().map(|refused| refused.0),
            None => Some(order),
        };
        if let Some(order) = refused {
            return Err(self.refuse(order));
        }
        Ok(Flight { shared: self.shared.clone(), number, done, deadline, ordering: self.ordering })
    }

    /// What the device waits for, and what tells the end.
    fn events(&self, fence: impl FnOnce() -> Fence) -> Result<(Ready, Arc<Event>), Refused> {
        let done = Arc::new(self.shared.events.take()?);
        if self.ordering == StreamOrdering::HostFence {
            return Ok((Ready::Fence(fence()), done));
        }
        let ready = Arc::new(self.shared.events.take()?);
        ready.record_context()?;
        Ok((Ready::Event(ready), done))
    }

    /// An operation that comes after the end.
    fn refuse(&self, order: Order) -> Failure {
        let (rank, reason) = (self.shared.rank, "a collective was called after its group was left".into());
        let failure = self.shared.progress.failure().unwrap_or(Failure::Aborted { rank, reason });
        self.shared.progress.given_up(order.number);
        order.ending.run(Some(&failure));
        failure
    }

    /// Waits until all operations have ended, under their deadlines, and leaves the communicator. Later calls do nothing.
    pub(crate) fn close(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        if queue.is_none() {
            return;
        }
        drop(queue);
        if !self.shared.progress.wait_closed(leave::LIMIT + SETTLE_LIMIT) {
            return log::error!("rank {} leaves a thread behind that is stuck in NCCL", self.shared.rank);
        }
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of a communicator has panicked");
            }
        }
    }

    /// How streams are ordered: never [`StreamOrdering::Auto`].
    pub(crate) fn ordering(&self) -> StreamOrdering {
        self.ordering
    }

    /// The version of NCCL, such as `2.27.3`.
    pub(crate) fn version(&self) -> String {
        self.version.clone()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.close();
    }
}

impl Flight {
    /// Returns when work that is submitted from now on sees the result: with context events as soon as the device has the
    /// operation, else when it has ended.
    ///
    /// # Errors
    ///
    /// The failure that has ended the group.
    pub(crate) fn join(&self) -> Result<(), Failure> {
        if self.ordering == StreamOrdering::HostFence {
            return self.wait_for_end();
        }
        self.wait(Stage::Enqueued)?;
        let shared = &self.shared;
        shared.hold(self.number, &self.done).map_err(|refused| shared.fail(shared.failure_of(refused)))
    }

    /// Returns when the device is done with it and nothing holds its memory any more.
    ///
    /// # Errors
    ///
    /// The failure that has ended the group before.
    pub(crate) fn wait_for_end(&self) -> Result<(), Failure> {
        self.wait(Stage::Ended)
    }

    fn wait(&self, stage: Stage) -> Result<(), Failure> {
        let Self { shared, number, deadline, .. } = self;
        shared.progress.wait(*number, stage, deadline.later(SLACK)).map_err(|failure| {
            let late = || Failure::Stalled { operation: "a collective".into(), limit: deadline.limit() };
            failure.unwrap_or_else(|| shared.fail(late()))
        })
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} on {:?}, ordered by {}", self.version, self.shared.gpu, self.ordering)
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} of {:?}", self.number, self.shared.gpu)
    }
}
