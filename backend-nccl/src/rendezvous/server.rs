//! The server side of the store: rank 0 runs it while the ranks find each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{
    admission::Admission,
    hello::{Hello, Identity, Role},
    refusal::Refusal,
    store::{Reply, Request},
};
use crate::{Error, Result, deadline::Deadline};

/// How often the accepting thread looks whether it should end.
const TICK: Duration = Duration::from_millis(20);
/// How long an answer may take to leave when a client does not read.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// The most that all values may take together.
const MAX_STORED_BYTES: usize = 64 << 20;

/// A running store. Dropping it answers those who wait with what is missing, and ends its threads.
#[derive(Debug)]
pub(crate) struct StoreServer {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    closing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<String, Vec<u8>>,
    joined: BTreeSet<usize>,
}

impl StoreServer {
    /// Serves on a listener made by [`listen`](super::listen).
    pub(crate) fn start(listener: TcpListener, host: Identity) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
        let admission = Admission::new(listener, host);
        let accepting = std::thread::Builder::new()
            .name("burn-nccl-store".into())
            .spawn({
                let shared = shared.clone();
                move || accept(&shared, admission)
            })
            .map_err(|source| Error::Listen { address, source: Arc::new(source) })?;
        Ok(Self { shared, accepting: Some(accepting) })
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        drop(self.shared.lock());
        self.shared.changed.notify_all();
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// Lets ranks in, gives each a thread, and ends them all when the server closes.
fn accept(shared: &Arc<Shared>, mut admission: Admission) {
    let mut served: Vec<(Arc<TcpStream>, JoinHandle<()>)> = Vec::new();
    while !shared.closing.load(Ordering::SeqCst) {
        for (stream, hello) in admission.admit(TICK, |hello| shared.accepts(hello)) {
            let rank = hello.identity.rank;
            // One descriptor for both: a second one could be the one too many.
            let stream = Arc::new(stream);
            shared.lock().joined.insert(rank);
            let serve = {
                let (shared, stream) = (shared.clone(), stream.clone());
                move || {
                    serve(&shared, &stream);
                    shared.lock().joined.remove(&rank);
                }
            };
            let started = stream.set_nonblocking(false).and_then(|()| {
                std::thread::Builder::new().name("burn-nccl-store-client".into()).spawn(serve)
            });
            match started {
                Ok(thread) => served.push((stream, thread)),
                Err(error) => {
                    log::warn!("the store cannot serve rank {rank}: {error}");
                    shared.lock().joined.remove(&rank);
                }
            }
        }
        served.retain(|(_, thread)| !thread.is_finished());
    }
    for (stream, thread) in served {
        // Reading ends, so the thread finishes its answer and returns.
        let _ = stream.shutdown(Shutdown::Read);
        let _ = thread.join();
    }
}

/// Answers one client until it goes or sends something that is no request.
fn serve(shared: &Shared, mut stream: &TcpStream) {
    let _ = stream.set_write_timeout(Some(WRITE_LIMIT));
    while let Ok(request) = Request::read(&mut stream) {
        if shared.answer(request).write(&mut stream).is_err() {
            return;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepts(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.role != Role::Store {
            return Err(Refusal::Stranger);
        }
        if self.lock().joined.contains(&hello.identity.rank) { Err(Refusal::DuplicateRank) } else { Ok(()) }
    }

    fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Set { key, value } => self.set(key, value),
            Request::Get { key, limit } => match self.wait(std::slice::from_ref(&key), limit) {
                Ok(state) => Reply::Value(state.values[&key].clone()),
                Err(missing) => Reply::Missing(missing),
            },
            Request::Wait { keys, limit } => match self.wait(&keys, limit) {
                Ok(_) => Reply::Value(Vec::new()),
                Err(missing) => Reply::Missing(missing),
            },
        }
    }

    fn set(&self, key: String, value: Vec<u8>) -> Reply {
        let mut state = self.lock();
        let stored: usize = state.values.iter().map(|(key, value)| key.len() + value.len()).sum();
        if stored + key.len() + value.len() > MAX_STORED_BYTES {
            return Reply::Bad(format!("the store is full, its limit is {MAX_STORED_BYTES} bytes"));
        }
        state.values.insert(key, value);
        self.changed.notify_all();
        Reply::Value(Vec::new())
    }

    /// Waits until all keys are set; otherwise the keys that are not.
    fn wait(&self, keys: &[String], limit: Duration) -> Result<MutexGuard<'_, State>, Vec<String>> {
        let deadline = Deadline::after(limit);
        let mut state = self.lock();
        loop {
            let missing: Vec<String> =
                keys.iter().filter(|key| !state.values.contains_key(*key)).cloned().collect();
            if missing.is_empty() {
                return Ok(state);
            }
            if deadline.expired() || self.closing.load(Ordering::SeqCst) {
                return Err(missing);
            }
            let wait = self.changed.wait_timeout(state, deadline.remaining());
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
