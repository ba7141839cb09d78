//! The TCP transport: one data connection for each pair of ranks, pairwise exchange.

mod exchange;
mod header;
mod lane;

use std::{
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Call, Collective, Signature, control::Control, engine::Engine, members::Members};
use crate::failure::Failure;

/// The data connection to one peer.
#[derive(Debug)]
struct Link {
    rank: usize,
    data: TcpStream,
}

/// What is kept about one peer between collectives.
#[derive(Debug, Default)]
struct Peer {
    last: Option<Signature>,
    /// The peer's version of the chunk that this rank folds.
    scratch: Vec<u8>,
}

/// The data connections of one rank, in rank order.
#[derive(Debug)]
pub(super) struct Tcp {
    /// Distinguishes the headers of this group from those of any other.
    tag: u32,
    links: Vec<Link>,
    peers: Mutex<Vec<Peer>>,
    /// Readable when the standing of a peer has changed.
    bell: Arc<EventFd>,
}

impl Tcp {
    /// Takes over a connection to each other rank, in rank order.
    pub(super) fn new(
        tag: u32,
        connections: Vec<(usize, TcpStream)>,
        control: &Control,
    ) -> Result<Self, Failure> {
        debug_assert!(connections.is_sorted_by_key(|(rank, _)| *rank), "the fold takes links in rank order");
        let refused = |action: &str, detail: String| Failure::System {
            rank: control.rank(),
            action: action.into(),
            detail,
        };
        let mut links = Vec::with_capacity(connections.len());
        for (rank, data) in connections {
            prepare(&data).map_err(|error| refused("prepare its data connections", error.to_string()))?;
            links.push(Link { rank, data });
        }
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| refused("make an event descriptor", error.to_string()))?;
        let bell = Arc::new(bell);
        let ring = bell.clone();
        // It can only fail when it is rung already.
        control.on_change(Box::new(move || {
            let _ = ring.write(1);
        }));
        let peers = Mutex::new(links.iter().map(|_| Peer::default()).collect());
        Ok(Self { tag, links, peers, bell })
    }

    /// The index of the connection to `rank`.
    fn link(&self, rank: usize) -> usize {
        self.links.binary_search_by_key(&rank, |link| link.rank).expect("a peer has a connection")
    }
}

impl Engine for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn run(
        &self,
        control: &Control,
        among: &Members,
        call: Call,
        collective: Collective<'_>,
    ) -> Result<(), Failure> {
        let mut peers = lock(&self.peers);
        exchange::run(exchange::Parties { tcp: self, control, among }, &mut peers, call, collective)
    }

    fn shutdown(&self) {
        for link in &self.links {
            let _ = link.data.shutdown(Shutdown::Both);
        }
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    unpace(stream);
    Ok(())
}

/// Takes pacing off a connection within one machine.
///
/// Where the system's congestion control paces what it sends (bbr), a loopback connection would wait for timers although
/// nothing on it can be congested. Not being allowed to change it costs speed only.
fn unpace(stream: &TcpStream) {
    if stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()) {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}

/// A poisoned lock guards plain values that are valid at every step, so the panic that poisoned it is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
