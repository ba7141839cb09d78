//! The process group: who takes part, in which order collectives run, and what ends them.

mod core;
mod options;
mod order;
mod work;
mod worker;

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use self::{
    core::{AbortOnPanic, Core, failed},
    order::Order,
    worker::Worker,
};

pub use options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_TIMEOUT, GroupOptions};
pub use work::Work;

use crate::{
    Error, Result,
    deadline::Deadline,
    rendezvous::{Environment, Identity, Rendezvous, Secret, listen},
    transport::{Call, Collective, DType, OpKind, ReduceOp, Single, Transport, tcp},
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
    local_rank: usize,
    local_world_size: usize,
    core: Arc<Core>,
    /// Started by the first asynchronous call.
    worker: Mutex<Option<Worker>>,
}

impl ProcessGroup {
    /// A group of this process alone. Every collective is the identity.
    pub fn single() -> Self {
        Self::new(Box::new(Single::default()), Place::ALONE, GroupOptions::default())
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
        let secret = Secret::random()?;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..world_size)
                .map(|rank| {
                    let environment = Environment::in_this_process(rank, world_size, port.port(), secret);
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
            return Ok(Self::new(Box::new(Single::default()), place, options));
        }
        let deadline = Deadline::after(options.connect_timeout);
        let identity = Identity::new(place.rank, place.world_size, &environment.run_id, environment.secret);
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
        let inner = Arc::new(Inner {
            local_rank: place.local_rank,
            local_world_size: place.local_world_size,
            core: Arc::new(core),
            worker: Mutex::new(None),
        });
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
            completion.complete(Err(error), Duration::ZERO);
            return work;
        }
        let mut worker = self.inner.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = match Worker::start_once(&mut worker, &self.inner.core) {
            Ok(worker) => worker,
            Err(error) => {
                completion.complete(Err(error), Duration::ZERO);
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

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.abort("it panicked, read its log for the message");
        }
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = worker.take() {
            worker.finish();
        }
    }
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
