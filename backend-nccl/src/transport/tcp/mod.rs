//! The TCP transport: a full mesh, two connections for each pair of ranks, pairwise exchange.
//!
//! One connection carries data, the other control frames. An abort must reach a peer whose data stream is full or
//! unread because a third rank is late, so it cannot travel behind data.

mod exchange;
mod lane;
mod mesh;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) use mesh::connect;

use super::{
    Call, Collective, Signature, Transport,
    frame::{Abort, CONTROL_BYTES, Control, MAX_CONTROL_PAYLOAD},
};
use crate::{deadline::Deadline, failure::Failure};

/// How long the reason may trail the end of a data connection: they are different connections, so order is not given.
const REASON_GRACE: Duration = Duration::from_millis(250);

/// The connections to one peer.
#[derive(Debug)]
pub(crate) struct Link {
    rank: usize,
    data: TcpStream,
    control: TcpStream,
}

/// What is known about one peer, kept between collectives.
#[derive(Debug, Default)]
struct Peer {
    standing: Standing,
    /// Control bytes that are not a whole frame yet.
    inbox: Vec<u8>,
    last: Option<Signature>,
    /// The peer's version of the chunk that this rank folds.
    scratch: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Here,
    Left,
    Lost,
    Failed(Abort),
}

/// The connections of one rank to all others, in rank order.
#[derive(Debug)]
pub(crate) struct Tcp {
    rank: usize,
    world_size: usize,
    /// Distinguishes the headers of this group from those of any other.
    tag: u32,
    links: Vec<Link>,
    peers: Mutex<Vec<Peer>>,
    failure: Mutex<Option<Failure>>,
    /// The last collective that this rank has finished.
    completed: AtomicU64,
}

impl Tcp {
    fn new(rank: usize, world_size: usize, tag: u32, links: Vec<Link>) -> Self {
        debug_assert!(links.is_sorted_by_key(|link| link.rank), "the fold takes links in rank order");
        let peers = links.iter().map(|_| Peer::default()).collect();
        Self {
            rank,
            world_size,
            tag,
            links,
            peers: Mutex::new(peers),
            failure: Mutex::new(None),
            completed: AtomicU64::new(0),
        }
    }

    fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Records the cause, the first one only, tells all peers and ends the connections. Returns the first cause.
    fn fail(&self, failure: Failure) -> Failure {
        let mut first = lock(&self.failure);
        if let Some(first) = &*first {
            return first.clone();
        }
        *first = Some(failure.clone());
        let completed = self.completed.load(Ordering::Acquire);
        let frame = Control::Abort(Abort { failure: failure.clone(), completed }).encode();
        for link in &self.links {
            // The buffer of a control connection is empty until now, so the frame fits without blocking; a peer that
            // does not get it sees the connection end.
            let _ = (&link.control).write(&frame);
            let _ = link.control.shutdown(Shutdown::Write);
        }
        // Only now: the end of a data connection makes a peer look for the reason. It also wakes a local wait.
        for link in &self.links {
            let _ = link.data.shutdown(Shutdown::Both);
        }
        failure
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn execute(&self, call: Call, collective: Collective<'_>) -> Result<(), Failure> {
        let mut peers = lock(&self.peers);
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        exchange::run(self, &mut peers, call, collective).map_err(|failure| self.fail(failure))?;
        self.completed.store(call.sequence, Ordering::Release);
        Ok(())
    }

    fn abort(&self, failure: Failure) {
        self.fail(failure);
    }

    fn close(&self) {
        if self.failure().is_some() {
            return;
        }
        let frame = Control::Goodbye.encode();
        for link in &self.links {
            let _ = (&link.control).write(&frame);
            let _ = link.control.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for Tcp {
    /// Closing a socket with unread bytes resets it, and a reset can overtake a control frame that is on its way.
    fn drop(&mut self) {
        let mut sink = [0; 4096];
        for link in &self.links {
            while matches!((&link.control).read(&mut sink), Ok(count) if count > 0) {}
        }
    }
}

impl Peer {
    /// Reads what the control connection holds.
    fn read_control(&mut self, link: &Link) {
        let mut bytes = [0; 4096];
        while self.standing == Standing::Here {
            match (&link.control).read(&mut bytes) {
                Ok(0) => self.standing = Standing::Lost,
                Ok(count) => self.take_control(link, &bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.standing = Standing::Lost,
            }
        }
    }

    fn take_control(&mut self, link: &Link, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        match Control::decode(&self.inbox) {
            Ok(None) => debug_assert!(self.inbox.len() < CONTROL_BYTES + MAX_CONTROL_PAYLOAD),
            Ok(Some(Control::Goodbye)) => self.standing = Standing::Left,
            Ok(Some(Control::Abort(abort))) => self.standing = Standing::Failed(abort),
            Err(detail) => {
                let failure = Failure::Protocol { rank: link.rank, detail };
                self.standing = Standing::Failed(Abort { failure, completed: 0 });
            }
        }
    }

    /// The failure that this peer has told, unless it had finished the collective before: then its bytes are all on
    /// their way, and so are those of the others, who must have come for it to finish.
    fn failure_before(&self, sequence: u64) -> Option<Failure> {
        match &self.standing {
            Standing::Failed(abort) if abort.completed < sequence => Some(abort.failure.clone()),
            _ => None,
        }
    }

    /// Why the connections to this peer have ended.
    fn reason_of_end(&mut self, link: &Link, detail: &str) -> Failure {
        let grace = Deadline::after(REASON_GRACE);
        loop {
            self.read_control(link);
            if let Some(failure) = self.failure(link, detail) {
                return failure;
            }
            if grace.expired() {
                return Failure::PeerLost { rank: link.rank, detail: detail.to_owned() };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn failure(&self, link: &Link, detail: &str) -> Option<Failure> {
        match &self.standing {
            Standing::Here => None,
            Standing::Left => Some(Failure::PeerLeft { rank: link.rank }),
            Standing::Lost => Some(Failure::PeerLost { rank: link.rank, detail: detail.to_owned() }),
            Standing::Failed(abort) => Some(abort.failure.clone()),
        }
    }
}

/// A poisoned lock guards plain values that are valid at every step, so the panic that poisoned it is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
