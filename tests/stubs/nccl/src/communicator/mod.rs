//! One rank's side of a communicator.

mod ending;

use std::{
    ffi::CString,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::ThreadId,
};

use stubs::lock;

use crate::{
    batch::Batch,
    code,
    library::{Outcome, library},
    unique_id::UniqueId,
    wire::{self, Message},
};

pub(crate) struct Communicator {
    pub(crate) handle: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// The ordinal of its GPU.
    pub(crate) device: i32,
    pub(crate) blocking: bool,
    owner: ThreadId,
    state: Mutex<State>,
    changed: Condvar,
    socket: Mutex<Option<Arc<UnixStream>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Ready,
    Finalizing,
    Finalized,
    Aborted,
}

struct State {
    phase: Phase,
    /// What starts after the polls that report progress.
    waiting: Option<Batch>,
    polls: u32,
    error: i32,
    said: &'static CString,
    launched: u64,
    ended: u64,
}

impl Communicator {
    pub(crate) fn new(handle: usize, rank: usize, ranks: usize, device: i32, blocking: bool) -> Self {
        let state = State {
            phase: Phase::Connecting,
            waiting: None,
            polls: library().config().in_progress_polls,
            error: code::SUCCESS,
            said: Box::leak(Box::default()),
            launched: 0,
            ended: 0,
        };
        Self {
            handle,
            rank,
            ranks,
            device,
            blocking,
            owner: std::thread::current().id(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            socket: Mutex::default(),
        }
    }

    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.owner == std::thread::current().id()
    }

    /// Keeps what `ncclGetLastError` says. Never freed: the caller has a pointer to it.
    pub(crate) fn say(&self, text: String) {
        lock(&self.state).said = Box::leak(Box::new(CString::new(text).unwrap_or_default()));
    }

    pub(crate) fn said(&self) -> &'static CString {
        lock(&self.state).said
    }

    /// Meets the other ranks.
    pub(crate) fn connect(&self, id: &UniqueId) -> Outcome {
        let config = library().double.config();
        if config.nccl.init_hangs.contains(&self.rank) {
            self.wait_for_abort();
            return Err(code::SYSTEM_ERROR);
        }
        let gpu = config
            .cuda
            .devices
            .get(self.device as usize)
            .map_or_else(String::new, |gpu| gpu.pci_bus_id.clone());
        let hello = Message::Hello { rank: self.rank, ranks: self.ranks, version: config.nccl.version, gpu };
        let answer = id.connect().and_then(|socket| {
            let socket = Arc::new(socket);
            *lock(&self.socket) = Some(socket.clone());
            wire::write(&socket, &hello, &[])?;
            wire::read(&socket)
        });
        let mut state = lock(&self.state);
        let code = match answer {
            Ok((Message::Ready, _)) => code::SUCCESS,
            Ok((Message::Refused { text }, _)) => {
                state.said = Box::leak(Box::new(CString::new(text).unwrap_or_default()));
                code::INVALID_USAGE
            }
            Ok(_) | Err(_) => code::SYSTEM_ERROR,
        };
        if state.phase == Phase::Connecting {
            state.phase = Phase::Ready;
            state.error = code;
        }
        if code == code::SUCCESS { Ok(()) } else { Err(code) }
    }

    /// Starts operations, or keeps them until polls have said so.
    pub(crate) fn launch(self: &Arc<Self>, batch: Batch) -> Outcome {
        let mut state = lock(&self.state);
        if state.error != code::SUCCESS {
            return Err(state.error);
        }
        if state.phase != Phase::Ready || state.waiting.is_some() {
            let why = if state.waiting.is_some() {
                "while another call is in progress".into()
            } else {
                format!("{:?}", state.phase)
            };
            return library().refuse(
                code::INVALID_USAGE,
                format!("{}: the communicator is not ready ({why})", batch.function()),
            );
        }
        let polls = library().config().in_progress_polls;
        if self.blocking || polls == 0 {
            return self.enqueue(&mut state, batch);
        }
        state.polls = polls;
        state.waiting = Some(batch);
        Err(code::IN_PROGRESS)
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, batch: Batch) -> Outcome {
        let (turn, communicator) = (state.launched, self.clone());
        let numbers: Vec<u64> = batch.items.iter().map(|_| library().start_operation(self.rank)).collect();
        library().driver()?.enqueue(batch.stream, move || {
            if communicator.wait_for_turn(turn) {
                crate::execute::run(&communicator, &batch.items, &numbers);
                numbers.iter().for_each(|_| library().end_operation(communicator.rank));
            }
            lock(&communicator.state).ended += 1;
            communicator.changed.notify_all();
        })?;
        state.launched += 1;
        Ok(())
    }

    /// Blocks until the operations before have ended. False if it was aborted.
    fn wait_for_turn(&self, turn: u64) -> bool {
        let mut state = lock(&self.state);
        while state.ended < turn && state.phase != Phase::Aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.phase != Phase::Aborted
    }

    pub(crate) fn is_aborted(&self) -> bool {
        lock(&self.state).phase == Phase::Aborted
    }

    pub(crate) fn wait_for_abort(&self) {
        let mut state = lock(&self.state);
        while state.phase != Phase::Aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn socket(&self) -> Option<Arc<UnixStream>> {
        lock(&self.socket).clone()
    }

    /// What polls report from now on.
    pub(crate) fn fail(&self, code: i32) {
        lock(&self.state).error = code;
    }

    /// What a poll reports; it also starts what waits for the last poll of a call.
    pub(crate) fn poll(self: &Arc<Self>) -> i32 {
        let errors = library().config().async_errors;
        let due =
            |error: &&stubs::AsyncError| error.rank == self.rank && library().ended(self.rank) >= error.after;
        let mut state = lock(&self.state);
        if state.error == code::SUCCESS && state.phase == Phase::Ready {
            state.error = errors.iter().find(due).map_or(code::SUCCESS, |error| error.code);
        }
        if state.error != code::SUCCESS {
            return state.error;
        }
        if state.phase == Phase::Connecting {
            return code::IN_PROGRESS;
        }
        if state.polls > 0 && !self.blocking {
            state.polls -= 1;
            return code::IN_PROGRESS;
        }
        if let Some(batch) = state.waiting.take()
            && let Err(code) = self.enqueue(&mut state, batch)
        {
            state.error = code;
            return code;
        }
        if state.phase == Phase::Finalizing && state.ended < state.launched {
            return code::IN_PROGRESS;
        }
        self.finalized(&mut state);
        code::SUCCESS
    }
}
