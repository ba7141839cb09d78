//! The control connections: how ranks learn that another leaves, fails or dies, whatever their data connections do.
//!
//! One connection for each pair of ranks, and one thread that reads them all. An abort must reach a peer whose data
//! stream is full, or that has none because its data moves through shared memory, so it cannot travel with data. The
//! thread only keeps what it hears; a call that waits asks [`Control::obstacle_among`].

mod link;
mod notice;
mod questions;
mod standing;
mod watch;

use std::{
    collections::BTreeSet,
    fmt,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use self::{
    link::{Link, Read},
    notice::{Abort, Notice},
    standing::{Answers, Peer, Posts, Standing},
};
use super::Witness;
use crate::{deadline::Deadline, failure::Failure};

pub(crate) use notice::MAX_POST_BYTES;
pub(crate) use watch::{Obstacle, Watch};

/// How long telling the peers of the end may take. Their buffers have room, unless they have been deaf for long.
const TELL_LIMIT: Duration = Duration::from_millis(200);

type Waker = Box<dyn Fn() + Send + Sync>;

/// This rank's control connections.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    world_size: usize,
    /// In rank order, without this rank.
    links: Vec<Link>,
    state: Mutex<State>,
    posted: Condvar,
    changes: AtomicU64,
    failed: AtomicBool,
    /// The first collective that this rank has not finished; the barrier of the set-up is number 0.
    next: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
    /// Held by who tells the others the end of the group.
    telling: Mutex<()>,
    witness: OnceLock<Arc<dyn Witness>>,
    /// Set when the thread is to end.
    closing: AtomicBool,
    bell: EventFd,
}

#[derive(Debug)]
struct State {
    /// By rank; this rank's own stays as it is.
    peers: Vec<Peer>,
    posts: Posts,
    answers: Answers,
    failure: Option<Failure>,
}

impl Control {
    /// Takes over a connection to each other rank and starts to read them. A rank is lost when its connection ends, or
    /// when its host has not answered for `host_timeout`.
    ///
    /// # Errors
    ///
    /// [`Failure::System`] where a thread or a descriptor cannot be had.
    pub(crate) fn start(
        rank: usize,
        world_size: usize,
        connections: Vec<(usize, TcpStream)>,
        host_timeout: Duration,
    ) -> Result<Self, Failure> {
        let refused = |action: &str, detail: String| Failure::System { rank, action: action.into(), detail };
        let mut links = Vec::with_capacity(connections.len());
        for (peer, stream) in connections {
            let link = Link::new(peer, stream, host_timeout)
                .map_err(|error| refused("prepare its control connections", error.to_string()))?;
            links.push(link);
        }
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| refused("make an event descriptor", error.to_string()))?;
        let peers = (0..world_size).map(|_| Peer::default()).collect();
        let shared = Arc::new(Shared {
            rank,
            world_size,
            links,
            state: Mutex::new(State {
                peers,
                posts: Posts::default(),
                answers: Answers::default(),
                failure: None,
            }),
            posted: Condvar::new(),
            changes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            next: AtomicU64::new(0),
            wakers: Mutex::default(),
            telling: Mutex::default(),
            witness: OnceLock::new(),
            closing: AtomicBool::new(false),
            bell,
        });
        let thread = std::thread::Builder::new()
            .name("burn-nccl-control".into())
            .spawn({
                let shared = shared.clone();
                move || shared.listen()
            })
            .map_err(|error| refused("start a thread", error.to_string()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn rank(&self) -> usize {
        self.shared.rank
    }

    pub(crate) fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// The cause that ended the group. One atomic load while there is none.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return None;
        }
        self.shared.lock().failure.clone()
    }

    /// Ends the group: keeps the cause, the first one only, wakes this rank's waits and tells all ranks. Returns the first
    /// cause.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        // Held until all are told, so that who fails with the first waits for that: it may end the process next.
        let _telling = self.shared.telling.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = self.shared.lock();
            if let Some(first) = &state.failure {
                return first.clone();
            }
            state.failure = Some(failure.clone());
            self.shared.failed.store(true, Ordering::Release);
        }
        self.shared.changed();
        let next = self.shared.next.load(Ordering::Acquire);
        self.shared.tell_all(&Notice::Abort(Abort { failure: failure.clone(), next }));
        failure
    }

    /// Why `peer` will never come to the collective `sequence`: it left, is lost, or failed before it; `None` while it
    /// may. A peer that is lost may have done its part before: look at the data once more.
    pub(crate) fn obstacle(&self, peer: usize, sequence: u64) -> Option<Failure> {
        self.shared.lock().peers[peer].standing.obstacle(peer, sequence)
    }

    /// A number that grows whenever the standing of a peer, or of the group, changes.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Acquire)
    }

    /// Has `wake` called after each change, on any thread. It must not block, nor keep this alive.
    pub(crate) fn on_change(&self, wake: Waker) {
        self.shared.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// The cause that another rank has told for the end of the group.
    pub(crate) fn told(&self) -> Option<Failure> {
        let state = self.shared.lock();
        state.peers.iter().find_map(|peer| match &peer.standing {
            Standing::Failed(abort) => Some(abort.failure.clone()),
            _ => None,
        })
    }

    /// Why the group cannot be set up: the first rank that has failed, left or died, if one does within `grace`.
    pub(crate) fn failure_within(&self, grace: Duration) -> Option<Failure> {
        let grace = Deadline::after(grace);
        loop {
            let failure = self.obstacle_among(None, 0..self.world_size()).map(Obstacle::failure);
            if failure.is_some() || grace.expired() {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Notes that this rank has finished the collective `sequence`.
    pub(crate) fn complete(&self, sequence: u64) {
        self.shared.next.store(sequence.saturating_add(1), Ordering::Release);
    }

    /// Tells the others that this rank leaves on purpose.
    pub(crate) fn goodbye(&self) {
        if self.failure().is_none() {
            let next = self.shared.next.load(Ordering::Acquire);
            self.shared.tell_all(&Notice::Goodbye { next });
        }
    }

    /// Gives every rank every rank's `value`, in rank order: for setting up, at most [`MAX_POST_BYTES`] each. A label
    /// serves once at a time.
    ///
    /// # Errors
    ///
    /// The obstacle of a rank that has not posted, or the deadline, with the ranks that are missing.
    pub(crate) fn gather(
        &self,
        label: &str,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        debug_assert!(value.len() <= MAX_POST_BYTES, "a post is small");
        let shared = &self.shared;
        shared.lock().posts.put(shared.world_size, shared.rank, label.to_owned(), value.to_vec());
        let frame = Notice::Post { label: label.to_owned(), value: value.to_vec() }.encode();
        for link in &shared.links {
            // A peer that cannot be told has gone, and the thread sees that.
            let _ = link.send(&frame, deadline);
        }
        let mut state = shared.lock();
        loop {
            let missing = match state.posts.take(shared.world_size, label) {
                Ok(values) => return Ok(values),
                Err(missing) => missing,
            };
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let obstacle =
                missing.iter().find_map(|&rank| state.peers[rank].standing.obstacle(rank, u64::MAX));
            if let Some(obstacle) = obstacle {
                return Err(obstacle);
            }
            if deadline.expired() {
                let last = vec![None; missing.len()];
                return Err(Failure::Deadline { missing, last, limit: deadline.limit() });
            }
            let wait = shared.posted.wait_timeout(state, deadline.remaining());
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Control {
    /// What has come under a label of values that are not taken yet, in rank order; empty where nothing has.
    pub(crate) fn posted(&self, label: &str) -> Vec<Option<Vec<u8>>> {
        self.shared.lock().posts.get(label)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let _ = self.shared.bell.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // It guards plain values that are valid at every step, so the panic that poisoned it is no reason to stop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all peers the end of this rank's part, and sends nothing after it.
    fn tell_all(&self, notice: &Notice) {
        let (frame, deadline) = (notice.encode(), Deadline::after(TELL_LIMIT));
        for link in &self.links {
            // One limit for all: where it has passed, a peer still gets what its buffer has room for. One that does not
            // get it sees the connection end.
            let _ = link.send(&frame, deadline);
            link.finish();
        }
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        // Under the lock, so that a wait that has just looked is not missed.
        drop(self.lock());
        self.posted.notify_all();
        for wake in self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wake();
        }
    }

    /// The thread: reads every connection until it ends or this rank closes.
    fn listen(&self) {
        let mut ended = BTreeSet::new();
        while !self.closing.load(Ordering::Acquire) {
            let open: Vec<&Link> = self.links.iter().filter(|link| !ended.contains(&link.rank)).collect();
            let mut fds = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
            fds.extend(open.iter().map(|link| PollFd::new(link.stream.as_fd(), PollFlags::POLLIN)));
            if let Err(error) = poll(&mut fds, PollTimeout::NONE)
                && error != nix::errno::Errno::EINTR
            {
                log::warn!("rank {} cannot watch its control connections: {error}", self.rank);
                return;
            }
            let ready: Vec<bool> =
                fds.iter().skip(1).map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
            for (link, _) in open.iter().zip(ready).filter(|(_, ready)| *ready) {
                if self.read(link) {
                    ended.insert(link.rank);
                }
            }
        }
        // Closing a socket with unread bytes resets it, and a reset can overtake a frame that is on its way.
        for link in &self.links {
            while let Read::Bytes(_) = link.read() {}
        }
    }

    /// Takes what has come from one peer; whether its connection has ended.
    fn read(&self, link: &Link) -> bool {
        let mut ended = false;
        let mut changed = false;
        loop {
            match link.read() {
                Read::Nothing => break,
                Read::Bytes(bytes) => {
                    self.take(link, &bytes);
                    changed = true;
                }
                Read::End(detail) => {
                    let standing = &mut self.lock().peers[link.rank].standing;
                    if *standing == Standing::Here {
                        *standing = Standing::Lost { detail };
                    }
                    (ended, changed) = (true, true);
                    break;
                }
            }
        }
        if changed {
            self.changed();
        }
        ended
    }

    /// Takes bytes of one peer, and answers what it asks.
    fn take(&self, link: &Link, bytes: &[u8]) {
        let rank = link.rank;
        let (questions, ended) = {
            let mut state = self.lock();
            let notices = state.peers[rank].receive(rank, bytes);
            let mut questions = Vec::new();
            for notice in notices {
                match notice {
                    Notice::Post { label, value } => state.posts.put(self.world_size, rank, label, value),
                    Notice::Answer { number, account } => state.answers.put(number, rank, account),
                    Notice::Ask { number, about } => questions.push((number, about)),
                    Notice::Goodbye { .. } | Notice::Abort(_) => {}
                }
            }
            let ended = match &state.peers[rank].standing {
                Standing::Failed(abort) if state.failure.is_none() => Some(abort.failure.clone()),
                _ => None,
            };
            (questions, ended)
        };
        self.bear_witness(link, questions, ended);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Ends the sending side: the peer reads what was sent, then the end.
    fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
