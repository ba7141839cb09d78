//! A test double for a bad network: a man in the middle between one rank and the rest of its job.
//!
//! Ranks that reach the rendezvous over loopback publish their port alone, and others look for it at the address at
//! which they reached the rendezvous. So a rank that is given another loopback address as its MASTER_ADDR makes all its
//! calls there, where this proxy listens on the same ports and forwards every byte, but for one fault. What passes is
//! not understood and no secret is known: it is the position of anyone on the way.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::flow::Pair;
use super::listeners::listening_ports;
use super::plan::{Connection, WireFault};

const TICK_MS: u8 = 3;

/// A running proxy.
pub(super) struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    /// Whether the fault has happened.
    fired: AtomicBool,
}

/// The processes of the ranks below the victim, by rank, and where rank 0 serves the rendezvous.
pub(super) struct Job {
    pub(super) processes: Vec<u32>,
    pub(super) store_port: u16,
}

impl Proxy {
    /// Listens on `address` in the place of all ranks below the victim.
    pub(super) fn start(address: Ipv4Addr, job: Job, fault: WireFault) -> Self {
        let shared = Arc::new(Shared::default());
        let mut middle = Middle::new(address, job, fault, shared.clone());
        let thread = std::thread::spawn(move || middle.run());
        Self { shared, thread: Some(thread) }
    }

    /// Ends it; whether the fault happened.
    pub(super) fn end(mut self) -> bool {
        self.stop();
        self.shared.fired.load(Ordering::SeqCst)
    }

    fn stop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Middle {
    address: Ipv4Addr,
    job: Job,
    fault: WireFault,
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    pairs: Vec<Pair>,
}

/// A port that the proxy serves, and whose it is.
struct Listener {
    listener: TcpListener,
    port: u16,
    /// `None` for the rendezvous.
    rank: Option<usize>,
    accepted: usize,
}

impl Middle {
    fn new(address: Ipv4Addr, job: Job, fault: WireFault, shared: Arc<Shared>) -> Self {
        let mut middle = Self { address, job, fault, shared, listeners: Vec::new(), pairs: Vec::new() };
        middle.listen(middle.job.store_port, None);
        middle
    }

    fn run(&mut self) {
        while !self.shared.ended.load(Ordering::SeqCst) {
            self.discover();
            self.accept();
            for pair in &mut self.pairs {
                pair.pump(&self.shared.fired);
            }
            self.pairs.retain(|pair| !pair.is_over());
            self.wait();
        }
    }

    /// Finds the ports of the ranks as they start to listen.
    fn discover(&mut self) {
        for rank in 0..self.job.processes.len() {
            if self.listeners.iter().any(|it| it.rank == Some(rank)) {
                continue;
            }
            for port in listening_ports(self.job.processes[rank]) {
                if port != self.job.store_port {
                    self.listen(port, Some(rank));
                }
            }
        }
    }

    fn listen(&mut self, port: u16, rank: Option<usize>) {
        if let Ok(listener) = TcpListener::bind((self.address, port)) {
            listener.set_nonblocking(true).expect("a socket can be made not to block");
            self.listeners.push(Listener { listener, port, rank, accepted: 0 });
        }
    }

    fn accept(&mut self) {
        for it in &mut self.listeners {
            while let Ok((caller, _)) = it.listener.accept() {
                let connection = match (it.rank, it.accepted) {
                    (None, _) => Some(Connection::Store),
                    (_, 0) => Some(Connection::Control),
                    (_, 1) => Some(Connection::Data),
                    // Another attempt, or a part of the group.
                    _ => None,
                };
                it.accepted += 1;
                // The callee may be gone, and the caller is then told by the end of its connection.
                let place = SocketAddr::from((Ipv4Addr::LOCALHOST, it.port));
                let Ok(callee) = TcpStream::connect(place) else { continue };
                let is_meant = connection == Some(self.fault.connection)
                    && it.rank.is_none_or(|rank| rank == self.fault.peer);
                self.pairs.push(Pair::new(caller, callee, is_meant.then_some(self.fault)));
            }
        }
    }

    fn wait(&self) {
        let mut fds: Vec<PollFd<'_>> =
            self.listeners.iter().map(|it| PollFd::new(it.listener.as_fd(), PollFlags::POLLIN)).collect();
        for flow in self.pairs.iter().flat_map(|pair| &pair.flows) {
            if flow.wants_input() {
                fds.push(PollFd::new(flow.from.as_fd(), PollFlags::POLLIN));
            } else if flow.wants_output() {
                fds.push(PollFd::new(flow.to.as_fd(), PollFlags::POLLOUT));
            }
        }
        let _ = poll(&mut fds, PollTimeout::from(TICK_MS));
    }
}
