//! How the ranks of a group reach each other: each calls the lower ranks and is called by the higher ones.

use std::{
    io::ErrorKind,
    net::{IpAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use crate::{
    Error, Result,
    deadline::Deadline,
    failure::Failure,
    rendezvous::{Admission, Hello, Identity, Refusal, Rendezvous, Role, address_key, call, listen},
    transport::control::Control,
};

/// How long one look at the listener may take before the deadline is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a rank is called before this one looks whether it is still there.
const SLICE: Duration = Duration::from_secs(5);

/// Where the ranks of a group are.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) identity: Identity,
    /// The rendezvous, for messages.
    address: String,
    /// The interface that this rank listens on.
    interface: IpAddr,
    /// How this rank reaches the host of each rank.
    hosts: Vec<String>,
    /// After how long without an answer a host is lost.
    pub(crate) host_timeout: Duration,
}

/// The time in which the ranks of a mesh make connections.
#[derive(Debug)]
pub(crate) struct Connecting {
    identity: Identity,
    address: String,
    /// Host and port of each rank.
    places: Vec<(String, u16)>,
    admission: Admission,
    /// Callers that came for another purpose than the one that is being connected.
    early: Vec<(TcpStream, Hello)>,
    /// Who has called for what: no rank calls twice for the same.
    called: Vec<(usize, Role)>,
}

impl Mesh {
    /// Finds the ranks of a job through its rendezvous.
    ///
    /// # Errors
    ///
    /// [`Error::MissingRanks`] when not all have come by the deadline; what the store answers.
    pub(crate) fn of_job(
        rendezvous: &Rendezvous,
        host_timeout: Duration,
        deadline: Deadline,
    ) -> Result<(Self, Connecting)> {
        let identity = rendezvous.identity;
        let (listener, published) = rendezvous.listen()?;
        rendezvous.store.set(&address_key(identity.rank), published.as_bytes(), deadline)?;
        rendezvous.wait_for_all(deadline)?;
        let places = (0..identity.world_size)
            .map(|rank| rendezvous.locate(rank, &rendezvous.store.get(&address_key(rank), deadline)?))
            .collect::<Result<Vec<_>>>()?;
        let mesh = Self {
            identity,
            address: rendezvous.address.clone(),
            interface: port_of(&listener, &rendezvous.address)?.0,
            hosts: places.iter().map(|(host, _)| host.clone()).collect(),
            host_timeout,
        };
        let connecting = mesh.connecting(places, listener);
        Ok((mesh, connecting))
    }

    /// Listens for the ranks of a part of this group, and says on which port.
    pub(crate) fn listen(&self) -> Result<(TcpListener, u16)> {
        let listener = listen(self.interface, 0)?;
        let port = port_of(&listener, &self.address)?.1;
        Ok((listener, port))
    }

    /// The mesh of a part of this group: of `members`, given as rank of this group and the port it listens on, in the
    /// order of their new ranks. `label` tells it from every other part.
    pub(crate) fn part(
        &self,
        label: &str,
        members: &[(usize, u16)],
        listener: TcpListener,
    ) -> Option<(Self, Connecting)> {
        let rank = members.iter().position(|(rank, _)| *rank == self.identity.rank)?;
        let places: Vec<(String, u16)> =
            members.iter().map(|(rank, port)| (self.hosts[*rank].clone(), *port)).collect();
        let mesh = Self {
            identity: self.identity.part(label, rank, members.len()),
            address: self.address.clone(),
            interface: self.interface,
            hosts: places.iter().map(|(host, _)| host.clone()).collect(),
            host_timeout: self.host_timeout,
        };
        let connecting = mesh.connecting(places, listener);
        Some((mesh, connecting))
    }

    fn connecting(&self, places: Vec<(String, u16)>, listener: TcpListener) -> Connecting {
        Connecting {
            identity: self.identity,
            address: self.address.clone(),
            places,
            admission: Admission::new(listener, self.identity),
            early: Vec::new(),
            called: Vec::new(),
        }
    }
}

impl Connecting {
    /// Makes a connection for `role` to each of `peers`, all of which do the same, and returns them in rank order.
    ///
    /// With `control`, a rank that has failed or died ends it at once: nobody would answer for it.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], [`Error::Refused`] or [`Error::MissingRanks`] by the deadline; [`Error::SetUp`] with what
    /// `control` knows.
    pub(crate) fn connect(
        &mut self,
        role: Role,
        peers: &[usize],
        control: Option<&Control>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, TcpStream)>> {
        let own = self.identity.rank;
        let mut connections: Vec<(usize, TcpStream)> = Vec::with_capacity(peers.len());
        for &peer in peers.iter().filter(|peer| **peer < own) {
            let (host, port) = &self.places[peer];
            let hello = Hello::new(self.identity, role, peer)?;
            let target = format!("rank {peer}");
            let stream = loop {
                let slice = match control {
                    Some(_) => Deadline::after(deadline.remaining_at_most(SLICE)),
                    None => deadline,
                };
                match call((host, *port), &target, &hello, slice) {
                    Err(Error::Connect { .. }) if !deadline.expired() => self.check(control)?,
                    Err(Error::Connect { rank, target, address, last, .. }) => {
                        let waited = deadline.elapsed();
                        return Err(Error::Connect { rank, target, address, waited, last });
                    }
                    outcome => break outcome?,
                }
            };
            connections.push((peer, stream));
        }
        loop {
            let mut at = 0;
            while at < self.early.len() {
                let hello = self.early[at].1;
                if hello.role == role && peers.contains(&hello.identity.rank) {
                    connections.push((hello.identity.rank, self.early.remove(at).0));
                } else {
                    at += 1;
                }
            }
            let is_missing = |peer: &&usize| !connections.iter().any(|(rank, _)| rank == *peer);
            let missing: Vec<usize> = peers.iter().filter(is_missing).copied().collect();
            if missing.is_empty() {
                break;
            }
            if deadline.expired() {
                let (world_size, address) = (self.places.len(), self.address.clone());
                return Err(Error::MissingRanks { missing, world_size, address, waited: deadline.elapsed() });
            }
            self.check(control)?;
            if let Some(&(rank, _)) = connections.iter().find(|(_, stream)| has_ended(stream)) {
                // Whoever is missing may be trying to reach that rank, which nobody will.
                let detail = "its connection ended while the group was set up".to_owned();
                return Err(self.set_up(Failure::PeerLost { rank, detail }));
            }
            self.admit(deadline.remaining_at_most(TICK));
        }
        connections.sort_by_key(|(rank, _)| *rank);
        Ok(connections)
    }

    /// Whether all ranks are still there, as far as that is known.
    fn check(&self, control: Option<&Control>) -> Result<()> {
        match control.and_then(|control| control.failure_within(Duration::ZERO)) {
            None => Ok(()),
            Some(failure) => Err(self.set_up(failure)),
        }
    }

    fn set_up(&self, failure: Failure) -> Error {
        Error::SetUp { rank: self.identity.rank, world_size: self.places.len(), failure }
    }

    fn admit(&mut self, wait: Duration) {
        let (own, called) = (self.identity.rank, &self.called);
        let admitted = self.admission.admit(wait, |hello| {
            let caller = (hello.identity.rank, hello.role);
            if hello.role == Role::Store {
                Err(Refusal::Stranger)
            } else if caller.0 <= own || called.contains(&caller) {
                Err(Refusal::DuplicateRank)
            } else {
                Ok(())
            }
        });
        self.called.extend(admitted.iter().map(|(_, hello)| (hello.identity.rank, hello.role)));
        self.early.extend(admitted);
    }
}

/// Whether the other side has closed a connection on which nothing has been sent yet.
fn has_ended(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

fn port_of(listener: &TcpListener, address: &str) -> Result<(IpAddr, u16)> {
    let local = listener.local_addr();
    let local =
        local.map_err(|source| Error::Listen { address: address.to_owned(), source: Arc::new(source) })?;
    Ok((local.ip(), local.port()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Three ranks of one job on this host, which have not called each other yet.
    fn three() -> [Connecting; 3] {
        let listeners = [(); 3].map(|()| listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap());
        let port = |listener: &TcpListener| ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        let places: Vec<(String, u16)> = listeners.iter().map(port).collect();
        let mut rank = 0..3;
        listeners.map(|listener| {
            let mesh = Mesh {
                identity: Identity::new(rank.next().unwrap(), 3, "job", None),
                address: "here".to_owned(),
                interface: Ipv4Addr::LOCALHOST.into(),
                hosts: vec!["127.0.0.1".to_owned(); 3],
                host_timeout: LIMIT,
            };
            mesh.connecting(places.clone(), listener)
        })
    }

    fn lost(error: Error) -> usize {
        match error {
            Error::SetUp { failure: Failure::PeerLost { rank, .. }, .. } => rank,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_rank_that_dies_once_it_is_connected_is_named_to_who_waits_for_another() {
        // Rank 2 never comes, as if it still tried to reach rank 0.
        let [mut zero, mut one, _two] = three();
        let dies = move || drop(zero.connect(Role::Control, &[1], None, Deadline::after(LIMIT)).unwrap());
        let died = std::thread::spawn(dies);
        let waiting = one.connect(Role::Control, &[0, 2], None, Deadline::after(LIMIT));
        died.join().unwrap();
        assert_eq!(lost(waiting.unwrap_err()), 0);
    }

    #[test]
    fn who_calls_a_rank_that_has_died_hears_it_from_the_control_connections() {
        let [zero, mut one, _two] = three();
        // Nobody listens for rank 0 any more.
        drop(zero);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let control = Control::start(1, 3, vec![(0, stream)], LIMIT).unwrap();
        let start = std::time::Instant::now();
        let error = one.connect(Role::Data, &[0, 2], Some(&control), Deadline::after(LIMIT)).unwrap_err();
        assert_eq!(lost(error), 0);
        assert!(start.elapsed() < LIMIT / 2, "the deadline was waited for");
    }
}
