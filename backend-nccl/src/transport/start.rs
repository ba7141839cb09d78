//! From the choice of a transport to its engines.

use super::{
    Mesh, TransportKind,
    choose::{Across, Choice, Hosts, Seat, choose},
    control::Control,
    engine::Engine,
    host,
    layered::Layered,
    mesh::Connecting,
    mpi,
    tcp::Tcp,
};
use crate::{Error, Result, deadline::Deadline, failure::Failure, rendezvous::Role};

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
    kind: TransportKind,
    deadline: Deadline,
) -> Result<Box<dyn Engine>> {
    let mut start = Start { mesh, control, connecting, deadline };
    let choice = choose(&start.seats(kind)?)?;
    log::debug!("rank {} of {}: {choice:?}", control.rank(), control.world_size());
    match choice {
        Choice::Flat(across) => start.across(across),
        Choice::Shared => start.shared(kind),
        Choice::Layered(hosts, across) => start.layered(&hosts, across),
    }
}

impl Start<'_> {
    /// What every rank says of itself, in rank order.
    fn seats(&self, kind: TransportKind) -> Result<Vec<Seat>> {
        let own = Seat { host: host::fingerprint(), kind, mpi: mpi::world() };
        let json = serde_json::to_vec(&own).expect("a seat is plain data");
        let seats = self.control.gather("seat", &json, self.deadline).map_err(|failure| self.failed(failure))?;
        let read = |(rank, json): (usize, Vec<u8>)| {
            serde_json::from_slice(&json).map_err(|error| {
                self.failed(Failure::Protocol { rank, detail: format!("no seat: {error}") })
            })
        };
        seats.into_iter().enumerate().map(read).collect()
    }

    /// The engine between all ranks.
    fn across(&mut self, across: Across) -> Result<Box<dyn Engine>> {
        let (own, tag) = (self.control.rank(), self.mesh.identity.tag());
        if let Across::Mpi(ranks) = across {
            return Ok(Box::new(mpi::connect(&ranks, tag, self.control, self.deadline)?));
        }
        let others: Vec<usize> = (0..self.control.world_size()).filter(|rank| *rank != own).collect();
        let connections = self.connecting.connect(Role::Data, &others, self.deadline)?;
        let tcp = Tcp::new(tag, connections, self.control).map_err(|failure| self.failed(failure))?;
        Ok(Box::new(tcp))
    }

    fn shared(&mut self, kind: TransportKind) -> Result<Box<dyn Engine>> {
        let _ = kind;
        self.across(Across::Tcp)
    }

    fn layered(&mut self, hosts: &Hosts, across: Across) -> Result<Box<dyn Engine>> {
        let across = self.across(across)?;
        match Layered::new(hosts, self.control.rank(), None, across) {
            Some(layered) => Ok(Box::new(layered)),
            None => unreachable!("every rank is on a host"),
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        Error::SetUp { rank: self.control.rank(), world_size: self.control.world_size(), failure }
    }
}
