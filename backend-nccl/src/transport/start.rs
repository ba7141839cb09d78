//! From the choice of a transport to its engines.

use super::{
    Mesh, TransportKind,
    choose::{Across, Choice, Hosts, Seat, choose},
    control::Control,
    engine::Engine,
    host,
    layered::Layered,
    members::Members,
    mesh::Connecting,
    mpi, shm,
    tcp::Tcp,
};
use crate::{Error, Result, deadline::Deadline, failure::Failure, rendezvous::Role};

/// What a rank asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    pub(crate) kind: TransportKind,
    /// A test double: what to say of the host instead of the truth.
    pub(crate) host: Option<String>,
}

/// What it takes to start an engine.
struct Start<'a> {
    mesh: &'a Mesh,
    control: &'a Control,
    connecting: &'a mut Connecting,
    deadline: Deadline,
}

/// The engine that suits all ranks.
///
/// # Errors
///
/// As [`choose`], and where the engine cannot be had in time.
pub(super) fn start(
    mesh: &Mesh,
    control: &Control,
    connecting: &mut Connecting,
    wish: Wish,
    deadline: Deadline,
) -> Result<Box<dyn Engine>> {
    let mut start = Start { mesh, control, connecting, deadline };
    let kind = wish.kind;
    let choice = choose(&start.seats(wish)?)?;
    log::debug!("rank {} of {}: {choice:?}", control.rank(), control.world_size());
    match choice {
        Choice::Flat(across) => start.across(across),
        Choice::Shared => start.shared(kind),
        Choice::Layered(hosts, across) => start.layered(&hosts, across),
    }
}

impl Start<'_> {
    /// What every rank says of itself, in rank order.
    fn seats(&self, wish: Wish) -> Result<Vec<Seat>> {
        let host = wish.host.unwrap_or_else(host::fingerprint);
        let own = Seat { host, kind: wish.kind, mpi: mpi::world() };
        let json = serde_json::to_vec(&own).expect("a seat is plain data");
        let seats =
            self.control.gather("seat", &json, self.deadline).map_err(|failure| self.failed(failure))?;
        let read = |(rank, json): (usize, Vec<u8>)| {
            serde_json::from_slice(&json)
                .map_err(|error| self.failed(Failure::Protocol { rank, detail: format!("no seat: {error}") }))
        };
        seats.into_iter().enumerate().map(read).collect()
    }

    /// The engine between all ranks.
    fn across(&mut self, across: Across) -> Result<Box<dyn Engine>> {
        let tag = self.mesh.identity.tag();
        if let Across::Mpi(ranks) = across {
            return Ok(Box::new(mpi::connect(&ranks, tag, self.control, self.deadline)?));
        }
        let others = Members::all(self.control.rank(), self.control.world_size()).others();
        let connections = self.connecting.connect(Role::Data, &others, Some(self.control), self.deadline)?;
        let tcp = Tcp::new(tag, connections, self.control).map_err(|failure| self.failed(failure))?;
        Ok(Box::new(tcp))
    }

    /// Shared memory between all ranks, or what was not asked for by name where it cannot be had.
    fn shared(&mut self, kind: TransportKind) -> Result<Box<dyn Engine>> {
        let all: Vec<usize> = (0..self.control.world_size()).collect();
        match self.share(&all)? {
            Ok(shm) => Ok(shm),
            Err(reason) if kind == TransportKind::SharedMemory => {
                Err(Error::TransportUnavailable { kind, reason })
            }
            Err(reason) => {
                log::warn!("no shared memory between ranks of one host, so data goes over tcp: {reason}");
                self.across(Across::Tcp)
            }
        }
    }

    /// Shared memory within hosts. A host without goes over what joins all ranks; that is its own affair.
    fn layered(&mut self, hosts: &Hosts, across: Across) -> Result<Box<dyn Engine>> {
        let own = self.control.rank();
        let across = self.across(across)?;
        let local = match self.share(&hosts.ranks()[hosts.of_rank(own)])? {
            Ok(shm) => Some(shm),
            Err(reason) => {
                let name = across.name();
                log::warn!(
                    "no shared memory on the host of rank {own}, so data goes over {name} there: {reason}"
                );
                None
            }
        };
        Ok(Box::new(Layered::new(hosts, own, local, across)))
    }

    /// Shared memory between ranks of this host, or why there is none. All ranks of the group come here.
    fn share(&self, members: &[usize]) -> Result<Result<Box<dyn Engine>, String>> {
        let shm =
            shm::connect(self.control, members, self.deadline).map_err(|failure| self.failed(failure))?;
        Ok(shm.map(|shm| Box::new(shm) as Box<dyn Engine>))
    }

    fn failed(&self, failure: Failure) -> Error {
        Error::SetUp { rank: self.control.rank(), world_size: self.control.world_size(), failure }
    }
}
