//! The process group: who takes part, in which order collectives run, and what ends them.

mod options;
mod order;
mod registry;
mod work;

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use order::Order;

pub use options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_TIMEOUT, GroupOptions};
pub use registry::GroupId;
pub use work::Work;

use crate::{
    Error, Result,
    deadline::Deadline,
    failure::Failure,
    rendezvous::{Environment, Identity, Rendezvous, listen},
    transport::{Call, Collective, DType, OpKind, ReduceOp, Signature, Single, Transport, tcp},
};

/// The most that [`ProcessGroup::all_gather_bytes`] may collect, in bytes.
const MAX_GATHERED_BYTES: u64 = 4 << 30;

/// The ranks that run one program together, seen from one of them.
///
/// A cheap handle: clones are the same group. Every rank must make the same collective calls in the same order; the
/// order is that of the calls, asynchronous ones included, so on each rank the calls should come from one thread.
///
/// The first failure ends the group: it reaches all ranks, and every later call returns it at once. Dropping the
/// last handle leaves the group; dropping it in a panic ends the group for all.
#[derive(Clone, Debug)]
pub struct ProcessGroup {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: GroupId,
    local_rank: usize,
    local_world_size: usize,
    core: Arc<Core>,
    /// Started by the first asynchronous call.
    worker: Mutex<Option<Worker>>,
}

/// What a collective needs. The communication thread holds it while it has work.
#[derive(Debug)]
struct Core {
    rank: usize,
    world_size: usize,
    options: GroupOptions,
    order: Order,
    transport: Box<dyn Transport>,
}

type Job = Box<dyn FnOnce(&Core) + Send>;

/// The communication thread.
#[derive(Debug)]
struct Worker {
    jobs: Sender<Job>,
    pending: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl ProcessGroup {
    /// A group of this process alone. Every collective is the identity.
    pub fn single() -> Self {
        Self::new(Box::new(Single), Place::ALONE, GroupOptions::default())
    }

    /// The group that the launcher's environment describes, or [`single`](Self::single) without one.
    ///
    /// # Errors
    ///
    /// As [`Environment::read`] and [`connect`](Self::connect).
    pub fn from_environment() -> Result<Self> {
        match Environment::read()? {
            Some(environment) => Self::connect(&environment, GroupOptions::default()),
            None => Ok(Self::single()),
        }
    }

    /// Joins the other ranks: rank 0 serves the rendezvous, then every pair of ranks connects.
    ///
    /// # Errors
    ///
    /// A rank that does not join, an address where nobody answers or a refusal, each by name and within
    /// [`GroupOptions::connect_timeout`].
    pub fn connect(environment: &Environment, options: GroupOptions) -> Result<Self> {
        Self::connect_on(environment, options, None)
    }

    /// `world_size` ranks in this process, over TCP on the loopback interface: for tests. Move each to a thread.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Panics
    ///
    /// If `world_size` is 0.
    pub fn local(world_size: usize, options: GroupOptions) -> Result<Vec<Self>> {
        assert!(world_size > 0, "a group has at least one rank");
        let listener = listen(Ipv4Addr::LOCALHOST.into(), 0)?;
        let port = listener.local_addr().map_err(|source| Error::Listen {
            address: Ipv4Addr::LOCALHOST.to_string(),
            source: Arc::new(source),
        })?;
        let mut listener = Some(listener);
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..world_size)
                .map(|rank| {
                    let environment = Environment::on_this_machine(rank, world_size, port.port());
                    let (options, listener) = (options.clone(), listener.take());
                    scope.spawn(move || Self::connect_on(&environment, options, listener))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("connecting does not panic")).collect()
        })
    }

    fn connect_on(
        environment: &Environment,
        options: GroupOptions,
        listener: Option<TcpListener>,
    ) -> Result<Self> {
        let place = Place {
            rank: environment.rank,
            world_size: environment.world_size,
            local_rank: environment.local_rank,
            local_world_size: environment.local_world_size,
        };
        if place.world_size == 1 {
            return Ok(Self::new(Box::new(Single), place, options));
        }
        let deadline = Deadline::after(options.connect_timeout);
        let identity = Identity::new(place.rank, place.world_size, &environment.run_id);
        let (host, port) = (environment.master_addr.as_str(), environment.master_port);
        let rendezvous = Rendezvous::join(identity, host, port, listener, deadline)?;
        let transport = tcp::connect(&rendezvous, deadline)?;
        // Rank 0 may close the store only when no rank needs it any more.
        let call = Call { sequence: 0, deadline, check: false };
        transport.execute(call, Collective::Barrier).map_err(|failure| {
            let signature = Collective::Barrier.signature(0);
            failed(place.rank, place.world_size, signature, deadline.elapsed(), failure)
        })?;
        log::debug!("rank {} of {} joined {}", place.rank, place.world_size, rendezvous.address);
        Ok(Self::new(Box::new(transport), place, options))
    }

    fn new(transport: Box<dyn Transport>, place: Place, options: GroupOptions) -> Self {
        let core =
            Core { rank: place.rank, world_size: place.world_size, options, order: Order::new(), transport };
        let id = GroupId::next();
        let inner = Arc::new(Inner {
            id,
            local_rank: place.local_rank,
            local_world_size: place.local_world_size,
            core: Arc::new(core),
            worker: Mutex::new(None),
        });
        id.register(Arc::downgrade(&inner));
        Self { inner }
    }

    /// This process's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.inner.core.rank
    }

    /// This process's number on its machine, from 0: which device it should take.
    pub fn local_rank(&self) -> usize {
        self.inner.local_rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.inner.core.world_size
    }

    /// How many ranks of the job run on this machine.
    pub fn local_world_size(&self) -> usize {
        self.inner.local_world_size
    }

    /// The transport that carries the collectives: `single` or `tcp`.
    pub fn transport_name(&self) -> &'static str {
        self.inner.core.transport.name()
    }

    /// The settings it was made with.
    pub fn options(&self) -> &GroupOptions {
        &self.inner.core.options
    }

    /// The number by which [`from_id`](Self::from_id) finds this group in this process.
    pub fn id(&self) -> GroupId {
        self.inner.id
    }

    /// The group with this number, if any handle of it is left.
    pub fn from_id(id: GroupId) -> Option<Self> {
        id.find().map(|inner| Self { inner })
    }

    /// Reduces `buffer` over all ranks in place; the result has the same bits on every rank, and for every way
    /// to cut a buffer into several calls.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::UnsupportedReduction`] before anything is sent;
    /// [`Error::Collective`] when the group has failed, with the cause.
    pub fn all_reduce(&self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check_reduction(op, dtype)?;
        check_whole(OpKind::AllReduce, buffer.len(), dtype)?;
        self.inner.core.run(Collective::AllReduce { buffer, dtype, op })
    }

    /// Copies the `buffer` of rank `root` to all ranks.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::Root`] before anything is sent; [`Error::Collective`] as above.
    pub fn broadcast(&self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        check_whole(OpKind::Broadcast, buffer.len(), dtype)?;
        if root >= self.world_size() {
            return Err(Error::Root { op: OpKind::Broadcast, root, world_size: self.world_size() });
        }
        self.inner.core.run(Collective::Broadcast { buffer, dtype, root })
    }

    /// Collects every rank's `send` in `recv`, in rank order: `recv` is `world_size` times as long.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] before anything is sent; [`Error::Collective`] as above.
    pub fn all_gather(&self, send: &[u8], recv: &mut [u8], dtype: DType) -> Result<()> {
        check_whole(OpKind::AllGather, send.len(), dtype)?;
        self.check_multiple(OpKind::AllGather, "recv", recv.len(), send.len())?;
        self.inner.core.run(Collective::AllGather { send, recv, dtype })
    }

    /// Reduces `send` over all ranks and keeps part `rank` of `world_size` equal parts in `recv`.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::UnsupportedReduction`] before anything is sent;
    /// [`Error::Collective`] as above.
    pub fn reduce_scatter(&self, send: &[u8], recv: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check_reduction(op, dtype)?;
        check_whole(OpKind::ReduceScatter, recv.len(), dtype)?;
        self.check_multiple(OpKind::ReduceScatter, "send", send.len(), recv.len())?;
        self.inner.core.run(Collective::ReduceScatter { send, recv, dtype, op })
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    ///
    /// [`Error::Collective`] as above.
    pub fn barrier(&self) -> Result<()> {
        self.inner.core.run(Collective::Barrier)
    }

    /// Collects a value of each rank, of any length, in rank order. Two collectives: lengths, then values padded to
    /// the longest.
    ///
    /// # Errors
    ///
    /// [`Error::GatherTooLarge`] on all ranks if they pad to more than 4 GiB; [`Error::Collective`] as above.
    pub fn all_gather_bytes(&self, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let core = &self.inner.core;
        let sequence = core.order.take(2, |sequence| sequence);
        let _turn = core.order.wait(sequence, 2);
        let dtype = DType::U8;

        let mut lengths = vec![0; 8 * core.world_size];
        let send = &(value.len() as u64).to_ne_bytes();
        core.execute(sequence, Collective::AllGather { send, recv: &mut lengths, dtype })?;
        let lengths: Vec<u64> =
            lengths.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes"))).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let bytes = longest.saturating_mul(core.world_size as u64);
        if bytes > MAX_GATHERED_BYTES {
            return Err(Error::GatherTooLarge { bytes, limit: MAX_GATHERED_BYTES });
        }

        let mut padded = value.to_vec();
        padded.resize(longest as usize, 0);
        let mut values = vec![0; bytes as usize];
        core.execute(sequence + 1, Collective::AllGather { send: &padded, recv: &mut values, dtype })?;
        let parts = lengths.iter().enumerate().map(|(rank, length)| {
            let start = rank * longest as usize;
            values[start..start + *length as usize].to_vec()
        });
        Ok(parts.collect())
    }

    /// As [`all_reduce`](Self::all_reduce) on the communication thread; takes its place in the order now.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    pub fn all_reduce_async<B>(&self, buffer: B, dtype: DType, op: ReduceOp) -> Work<B>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let (work, completion) = work::pair();
        let mut buffer = buffer;
        let invalid = check_reduction(op, dtype)
            .and_then(|()| check_whole(OpKind::AllReduce, buffer.as_mut().len(), dtype))
            .err();
        if let Some(error) = invalid {
            completion.complete(Err(error), std::time::Duration::ZERO);
            return work;
        }
        let mut worker = self.inner.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = match start_once(&mut worker, &self.inner.core) {
            Ok(worker) => worker,
            Err(error) => {
                completion.complete(Err(error), std::time::Duration::ZERO);
                return work;
            }
        };
        self.inner.core.order.take(1, |sequence| {
            worker.submit(Box::new(move |core| {
                let _turn = core.order.wait(sequence, 1);
                let _abort = AbortOnPanic(core);
                let start = Instant::now();
                let collective = Collective::AllReduce { buffer: buffer.as_mut(), dtype, op };
                let result = core.execute(sequence, collective);
                let duration = start.elapsed();
                completion.complete(result.map(|()| buffer), duration);
            }));
        });
        work
    }

    /// Ends the group on all ranks: calls that wait and all later ones return an error with this reason.
    pub fn abort(&self, reason: &str) {
        self.inner.core.abort(reason);
    }

    fn check_multiple(&self, op: OpKind, buffer: &'static str, found: usize, part: usize) -> Result<()> {
        match part.checked_mul(self.world_size()) {
            Some(expected) if expected == found => Ok(()),
            _ => {
                let expected = format!("{} ranks times {part}", self.world_size());
                Err(Error::BufferLength { op, buffer, expected, found })
            }
        }
    }
}

/// Where a rank stands in its job.
#[derive(Clone, Copy, Debug)]
struct Place {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_world_size: usize,
}

impl Place {
    const ALONE: Self = Self { rank: 0, world_size: 1, local_rank: 0, local_world_size: 1 };
}

impl Core {
    fn run(&self, collective: Collective<'_>) -> Result<()> {
        let sequence = self.order.take(1, |sequence| sequence);
        let _turn = self.order.wait(sequence, 1);
        self.execute(sequence, collective)
    }

    fn execute(&self, sequence: u64, collective: Collective<'_>) -> Result<()> {
        let _abort = AbortOnPanic(self);
        let deadline = Deadline::after(self.options.timeout);
        let signature = collective.signature(sequence);
        let call = Call { sequence, deadline, check: self.options.check };
        self.transport
            .execute(call, collective)
            .map_err(|failure| failed(self.rank, self.world_size, signature, deadline.elapsed(), failure))
    }

    fn abort(&self, reason: &str) {
        self.transport.abort(Failure::Aborted { rank: self.rank, reason: reason.to_owned() });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.transport.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.id.unregister();
        if std::thread::panicking() {
            self.core.abort("it panicked, read its log for the message");
        }
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Worker { jobs, pending, thread }) = worker.take() {
            drop(jobs);
            // Work that nobody waits for goes on alone under its deadline; dropping a group does not wait for peers.
            // The thread itself may hold the last handle, in a buffer, and must not wait for itself.
            if pending.load(Ordering::Acquire) == 0 && thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// The other ranks wait for a collective that a panic leaves half done.
struct AbortOnPanic<'a>(&'a Core);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("it panicked in a collective, read its log for the message");
        }
    }
}

impl Worker {
    fn start(core: Arc<Core>) -> Result<Self> {
        let (jobs, queue): (Sender<Job>, Receiver<Job>) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = pending.clone();
        let serve = move || {
            for job in queue {
                // A panic comes from the buffer's `as_mut`; it has ended the group, and later jobs must hear of it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&core)));
                left.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let thread = std::thread::Builder::new()
            .name("burn-nccl-comm".into())
            .spawn(serve)
            .map_err(|error| Error::CommunicationThread { reason: error.to_string() })?;
        Ok(Self { jobs, pending, thread })
    }

    fn submit(&self, job: Job) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        self.jobs.send(job).expect("the communication thread lives as long as its queue");
    }
}

fn start_once<'a>(worker: &'a mut Option<Worker>, core: &Arc<Core>) -> Result<&'a Worker> {
    match worker {
        Some(worker) => Ok(worker),
        None => Ok(worker.insert(Worker::start(core.clone())?)),
    }
}

fn failed(
    rank: usize,
    world_size: usize,
    signature: Signature,
    elapsed: std::time::Duration,
    failure: Failure,
) -> Error {
    Error::Collective { op: signature.kind, sequence: signature.sequence, rank, world_size, elapsed, failure }
}

fn check_reduction(op: ReduceOp, dtype: DType) -> Result<()> {
    if op.supports(dtype) { Ok(()) } else { Err(Error::UnsupportedReduction { op, dtype }) }
}

fn check_whole(op: OpKind, found: usize, dtype: DType) -> Result<()> {
    if found.is_multiple_of(dtype.size_bytes()) {
        return Ok(());
    }
    let expected = format!("a multiple of {} for {dtype}", dtype.size_bytes());
    Err(Error::BufferLength { op, buffer: "data", expected, found })
}
