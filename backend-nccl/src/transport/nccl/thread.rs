//! The thread that owns a communicator: everything that NCCL and its stream are told comes from here, in order.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use super::{
    api::{REMOTE_ERROR, SYSTEM_ERROR},
    ending::Ending,
    event::Event,
    issue::Lane,
    operation::{DeviceOperation, Fence},
    shared::{Shared, Trouble},
    stream::Stream,
};
use crate::{failure::Failure, transport::DType};

/// The first pause between two looks at what is under way, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));
/// How long the stream may take to end after an abort.
pub(super) const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// How long the host may take to tell why NCCL has lost another rank.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);

/// What the device waits for before an operation.
pub(super) enum Ready {
    /// What the context had been given when the operation was started.
    Event(Arc<Event>),
    /// What the host waits for.
    Fence(Fence),
}

/// An operation on its way to the owner.
pub(super) struct Order {
    pub(super) number: u64,
    pub(super) operation: DeviceOperation,
    pub(super) dtype: DType,
    pub(super) ready: Ready,
    /// Reached when the device is done with it.
    pub(super) done: Arc<Event>,
    pub(super) on_start: Box<dyn FnOnce() + Send>,
    pub(super) ending: Ending,
}

/// An operation that has been begun.
struct Flying {
    number: u64,
    done: Arc<Event>,
    /// Whether `done` has been recorded.
    is_enqueued: bool,
    /// Whether the device may use the memory.
    is_touched: bool,
    ending: Ending,
}

/// The owner of a communicator.
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: Stream,
    queue: Receiver<Order>,
    flying: VecDeque<Flying>,
    trouble: Trouble,
    pause: Duration,
}

impl Owner {
    pub(super) fn new(shared: Arc<Shared>, stream: Stream, queue: Receiver<Order>) -> Self {
        let (flying, trouble) = (VecDeque::new(), Trouble::default());
        Self { shared, stream, queue, flying, trouble, pause: PAUSES.0 }
    }

    /// Carries out what comes in the queue, until nothing can come any more and all has ended.
    pub(super) fn serve(&mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.run_all())).is_err() {
            let (rank, action) = (self.shared.rank, "go on with its collectives on a GPU".to_owned());
            let detail = "its communication thread has panicked, read its log for the message".to_owned();
            let failure = Failure::System { rank, action, detail };
            if catch_unwind(AssertUnwindSafe(|| self.end_with(failure.clone()))).is_err() {
                // The drop keeps the memory of what is under way, which nobody knows the end of now.
                self.shared.progress.fail(failure);
                return;
            }
        }
    }

    fn run_all(&mut self) {
        let mut is_open = true;
        while is_open || !self.flying.is_empty() {
            let order = match (is_open, self.flying.is_empty()) {
                (true, true) => self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (true, false) => self.queue.recv_timeout(self.pause),
                (false, _) => {
                    std::thread::sleep(self.pause);
                    Err(RecvTimeoutError::Timeout)
                }
            };
            match order {
                Ok(order) => self.begin(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            }
            if let Err(failure) = self.look() {
                self.end_with(failure);
            }
        }
    }

    /// Gives one operation to the device.
    fn begin(&mut self, order: Order) {
        self.pause = PAUSES.0;
        let Order { number, operation, dtype, ready, done, on_start, ending } = order;
        if let Some(failure) = self.shared.progress.failure() {
            ending.run(Some(&failure));
            return self.shared.progress.given_up(number);
        }
        let trouble = self.trouble.look(&self.shared);
        let flying = Flying { number, done, is_enqueued: false, is_touched: false, ending };
        // Before anything else, so that a failure finds it here whatever it comes from.
        self.flying.push_back(flying);
        // NCCL may not let go of it until another rank comes.
        on_start();
        // Nobody has looked while there was nothing under way.
        match trouble.map_or(Ok(()), Err).and_then(|()| self.enqueue(&operation, dtype, ready)) {
            Ok(()) => self.shared.progress.enqueued(number),
            Err(failure) => self.end_with(failure),
        }
    }

    fn enqueue(&mut self, operation: &DeviceOperation, dtype: DType, ready: Ready) -> Result<(), Failure> {
        let shared = self.shared.clone();
        let refused = |refused| shared.failure_of(refused);
        match ready {
            Ready::Event(ready) => self.stream.wait_for(&ready).map_err(refused)?,
            Ready::Fence(fence) => shared.comm.away(fence).map_err(|detail| {
                let action = "wait for the computation of its tensors".into();
                Failure::System { rank: shared.rank, action, detail }
            })?,
        }
        if let Some(last) = self.flying.back_mut() {
            last.is_touched = true;
        }
        let lane = Lane { comm: &shared.comm, stream: &self.stream, world_size: shared.world_size };
        // SAFETY: the regions are valid as long as `keep` lives, which `flying` holds until `done` is reached.
        unsafe { lane.issue(operation, dtype) }.map_err(refused)?;
        // Until then NCCL may not have enqueued anything, and `done` would be too early.
        while !shared.comm.is_settled("start a collective").map_err(refused)? {
            self.look()?;
            std::thread::sleep(PAUSES.0);
        }
        if let Some(last) = self.flying.back_mut() {
            self.stream.record(&last.done).map_err(refused)?;
            last.is_enqueued = true;
        }
        Ok(())
    }

    /// Sees what has ended, and whether the rest will.
    fn look(&mut self) -> Result<(), Failure> {
        if self.flying.is_empty() {
            return Ok(());
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
        let shared = self.shared.clone();
        while let Some(front) = self.flying.front().filter(|front| front.is_enqueued) {
            if !front.done.is_reached().map_err(|refused| shared.failure_of(refused))? {
                break;
            }
            let Some(Flying { number, ending, .. }) = self.flying.pop_front() else { break };
            ending.run(None);
            // Last: who waits for it may take the memory over.
            shared.progress.ended(number);
            self.pause = PAUSES.0;
        }
        if let Err(refused) = shared.comm.is_settled("go on with its collectives") {
            return Err(shared.failure_of(refused));
        }
        self.trouble.look(&shared).map_or(Ok(()), Err)
    }

    /// Ends the communicator, and all that has begun.
    fn end_with(&mut self, failure: Failure) {
        let failure = self.shared.fail(self.cause_of(failure));
        if !self.flying.is_empty() {
            // Who computes on the GPU may read what it leaves before anything returns the failure.
            log::error!("rank {} gives up its collectives on a GPU: {failure}", self.shared.rank);
        }
        self.shared.comm.abort();
        // The memory belongs to the device until it has come to the end of what it was given.
        let limit = Instant::now() + SETTLE_LIMIT;
        while !self.stream.is_idle() && Instant::now() < limit {
            std::thread::sleep(PAUSES.1);
        }
        let is_idle = self.stream.is_idle();
        for Flying { number, ending, is_touched, .. } in self.flying.drain(..) {
            if is_idle || !is_touched {
                ending.run(Some(&failure));
            } else {
                log::error!("the GPU does not end an operation that was aborted; its memory stays in use");
                ending.leak(&failure);
            }
            self.shared.progress.given_up(number);
        }
    }

    /// What has happened to another rank, where NCCL has seen that something has: the group knows which and what.
    fn cause_of(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Nccl { code: REMOTE_ERROR | SYSTEM_ERROR, .. }) {
            return failure;
        }
        let limit = Instant::now() + CAUSE_LIMIT;
        while Instant::now() < limit {
            if let Some(cause) = self.shared.group.obstacle() {
                return cause;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        failure
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let failure = self.shared.progress.failure();
        for Flying { number, ending, .. } in self.flying.drain(..) {
            let (rank, reason) = (self.shared.rank, "its communication thread has ended".into());
            ending.leak(failure.as_ref().unwrap_or(&Failure::Aborted { rank, reason }));
            self.shared.progress.given_up(number);
        }
    }
}
