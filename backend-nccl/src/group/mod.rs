//! The process group: who takes part, in which order collectives run, and what ends them.

mod asynchronous;
mod check;
mod collectives;
mod core;
#[cfg(feature = "nccl")]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without CUDA tensors only tests come here"))]
mod device;
#[cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "without NCCL only tests come here"))]
mod device_work;
mod flight;
mod health;
mod inside;
mod options;
mod order;
mod record;
mod recorder;
mod reserved;
mod split;
mod watchdog;
#[cfg(feature = "nccl")]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "as for `device`"))]
mod wishes;
mod work;
mod worker;

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use self::{core::Core, order::Order, watchdog::Watchdog, worker::Worker};

#[cfg(feature = "nccl")]
pub use device::DeviceTransportReport;
#[cfg(any(feature = "cuda", all(test, feature = "nccl")))]
pub(crate) use device::{DeviceRoute, Planned};
pub use device_work::DeviceWork;
#[cfg(any(test, feature = "nccl"))]
pub(crate) use device_work::Until;
pub use options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_HOST_TIMEOUT, DEFAULT_TIMEOUT, GroupOptions};
pub use record::{
    Answer, FLIGHT_RECORD_VERSION, FlightRecord, Operation, RankStatus, RecordedFailure, State,
};
pub use reserved::Reserved;
pub use work::Work;

use crate::{
    Error, Result,
    deadline::Deadline,
    rendezvous::{Environment, Identity, Rendezvous, Secret, listen},
    transport::{self, Buffer, Mesh, Single, Transport, nccl::Slots},
};

/// The name of the group of all ranks of a job.
pub(crate) const WORLD: &str = "world";

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
    /// How often the group has been split.
    splits: AtomicU64,
}

impl ProcessGroup {
    /// A group of this process alone. Every collective is the identity.
    pub fn single() -> Self {
        Self::new(WORLD.into(), Box::new(Single::default()), Place::ALONE, GroupOptions::default())
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
            return Ok(Self::new(WORLD.into(), Box::new(Single::default()), place, options));
        }
        let wish = options.wish(place.rank)?;
        let deadline = Deadline::after(options.connect_timeout);
        let mut environment = environment.clone();
        let listener = transport::mpi::prepare(&mut environment, wish.kind, deadline)?.or(listener);
        let identity = Identity::new(place.rank, place.world_size, &environment.run_id, environment.secret);
        let (host, port) = (environment.master_addr.as_str(), environment.master_port);
        let rendezvous = Rendezvous::join(identity, host, port, listener, deadline)?;
        let (mesh, connecting) = Mesh::of_job(&rendezvous, options.host_timeout, deadline)?;
        let transport = transport::connect(mesh, connecting, wish, deadline)?;
        log::debug!("rank {} of {} joined {}", place.rank, place.world_size, rendezvous.address);
        Ok(Self::new(WORLD.into(), Box::new(transport), place, options))
    }

    fn new(name: String, transport: Box<dyn Transport>, place: Place, options: GroupOptions) -> Self {
        let (rank, world_size) = (place.rank, place.world_size);
        let watchdog = Watchdog::new(name, rank, world_size, transport.name());
        transport.set_witness(watchdog.clone());
        let (transport, devices) = (Arc::from(transport), Slots::default());
        let core = Core { rank, world_size, options, order: Order::new(), transport, devices, watchdog };
        let inner = Arc::new(Inner {
            local_rank: place.local_rank,
            local_world_size: place.local_world_size,
            core: Arc::new(core),
            worker: Mutex::new(None),
            splits: AtomicU64::new(0),
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

    /// The transport that carries the collectives: `single`, `tcp`, `shm`, …
    pub fn transport_name(&self) -> &'static str {
        self.inner.core.transport.name()
    }

    /// What carries its collectives, for tests of what is added to it.
    #[cfg(all(test, feature = "nccl"))]
    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        self.inner.core.transport.clone()
    }

    /// The settings it was made with.
    pub fn options(&self) -> &GroupOptions {
        &self.inner.core.options
    }

    /// `len_bytes` zeros in memory that the transport moves without a copy where it can. A collective on it, or on a part
    /// of it, gives the same result as on any other memory, only sooner.
    ///
    /// A collective that failed may go on in it: a peer that is slow and has not heard of the failure may still write to
    /// the buffer that it was called on. So what is in that buffer then is undefined for as long as any rank of the group
    /// lives, even if it is written anew; take the data from elsewhere, and drop it.
    pub fn buffer(&self, len_bytes: usize) -> Buffer {
        self.inner.core.transport.allocate(len_bytes)
    }

    /// The name of the group in messages and records: `world`, or for a part of a group its name, the number of the split
    /// and the color, such as `world.0-1`.
    pub fn name(&self) -> &str {
        &self.inner.core.watchdog.name
    }

    /// What this rank has done in the group and what it is doing: the last thousand operations.
    ///
    /// The same is written as JSON to the folder that `BURN_NCCL_FLIGHT_RECORD` names when the group fails.
    pub fn flight_record(&self) -> FlightRecord {
        self.inner.core.watchdog.record(None)
    }

    /// Ends the group on all ranks: calls that wait and all later ones return an error with this reason.
    pub fn abort(&self, reason: &str) {
        self.inner.core.abort(reason);
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
