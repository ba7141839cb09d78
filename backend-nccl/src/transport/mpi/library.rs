//! The MPI library of this process: initialized once, by a thread that also finalizes it.
//!
//! The thread serves two rules of MPI. MPI_Init and MPI_Finalize wait for all ranks without a limit of their own: a caller
//! waits for the thread instead, up to its deadline. And MPI_Finalize must come from the thread that called MPI_Init.
//!
//! MPI is finalized when the process exits, because it cannot be initialized a second time and a later group may need
//! it, and only if no group that ran over it has failed: after a failure some rank never comes, and a launcher hears of
//! the failure by the exit code. A rank that waits there for longer than [`FINALIZE_LIMIT`] exits without.

use std::{
    ffi::c_int,
    ptr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mpi::ffi;

use super::checked::{self, Comm, Fault, Turn, check};
use crate::deadline::Deadline;

/// How long a process waits at its exit for the others to finalize MPI.
const FINALIZE_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two looks at a call that has no other way to tell.
const PAUSE: Duration = Duration::from_micros(200);

/// MPI, initialized.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) comm: Comm,
    /// This process in MPI's world.
    pub(crate) rank: usize,
    /// The processes in MPI's world.
    pub(crate) size: usize,
    /// Such as `Open MPI v4.1.4`.
    pub(crate) version: String,
    largest_tag: c_int,
    /// Groups whose first rank is this process.
    groups: AtomicU64,
    /// Whether this crate initialized MPI, and finalizes it.
    ours: bool,
    /// Whether a group has failed, so that messages may be under way that nobody will take.
    pub(super) failed: AtomicBool,
    /// Collectives under way.
    pub(super) running: AtomicUsize,
}

#[derive(Debug)]
enum State {
    Idle,
    Starting,
    Ready(Arc<Library>),
    Failed(Fault),
    Finalizing,
    Over,
}

static STATE: Mutex<State> = Mutex::new(State::Idle);
static CHANGED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(new: State) {
    *state() = new;
    CHANGED.notify_all();
}

/// Initializes MPI, or returns what has been before. Every rank of the job must come here within the deadline.
pub(super) fn start(deadline: Deadline) -> Result<Arc<Library>, Fault> {
    const ACTION: &str = "start";
    let mut state = state();
    if matches!(*state, State::Idle) {
        *state = State::Starting;
        let thread = std::thread::Builder::new().name("burn-nccl-mpi".into()).spawn(move || serve(deadline));
        if let Err(error) = thread {
            *state = State::Idle;
            return Err(Fault::ours(ACTION, format!("its thread did not start: {error}")));
        }
    }
    loop {
        match &*state {
            State::Ready(library) => return Ok(library.clone()),
            State::Failed(fault) => return Err(fault.clone()),
            State::Finalizing | State::Over => return Err(Fault::ours(ACTION, "MPI has been finalized")),
            State::Idle | State::Starting => {}
        }
        if deadline.expired() {
            let text = format!(
                "not all processes of the job have called MPI_Init within {:.1?}; look for one that waits or has ended",
                deadline.elapsed()
            );
            return Err(Fault::ours(ACTION, text));
        }
        let waited = CHANGED.wait_timeout(state, deadline.remaining());
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// What has become of MPI, if anyone has asked for it.
pub(super) fn started() -> Option<Result<Arc<Library>, Fault>> {
    match &*state() {
        State::Idle => None,
        State::Ready(library) => Some(Ok(library.clone())),
        State::Failed(fault) => Some(Err(fault.clone())),
        State::Starting => Some(Err(Fault::ours("start", "it has not started in time"))),
        State::Finalizing | State::Over => Some(Err(Fault::ours("start", "MPI has been finalized"))),
    }
}

/// The life of the thread.
fn serve(deadline: Deadline) {
    let library = match initialize(deadline) {
        Ok(library) => Arc::new(library),
        Err(fault) => return change(State::Failed(fault)),
    };
    let ours = library.ours;
    // SAFETY: the function is of the right kind and lives as long as the program.
    if ours && unsafe { nix::libc::atexit(at_exit) } != 0 {
        log::warn!(
            "MPI cannot be finalized when the program exits: the system keeps no more functions for that"
        );
    }
    change(State::Ready(library));
    if !ours {
        return;
    }
    let waited = CHANGED.wait_while(state(), |state| !matches!(state, State::Finalizing));
    drop(waited.unwrap_or_else(PoisonError::into_inner));
    if let Err(fault) = Turn::wait("finalize").and_then(Turn::finalize) {
        log::warn!("MPI {fault}");
    }
    change(State::Over);
}

fn initialize(deadline: Deadline) -> Result<Library, Fault> {
    let turn = Turn::wait("start")?;
    let ours = !is_initialized()?;
    let level = if ours { initialize_threads()? } else { thread_level()? };
    // SAFETY: constants of the shim that nothing writes.
    let (serialized, multiple) = unsafe { (ffi::RSMPI_THREAD_SERIALIZED, ffi::RSMPI_THREAD_MULTIPLE) };
    let version = checked::library_version();
    if level < if ours { serialized } else { multiple } {
        let text = format!(
            "{version} allows calls from one thread only; use an MPI built with threads, and where the program itself \
             initializes it ask for MPI_THREAD_MULTIPLE"
        );
        return Err(Fault::ours("start", text));
    }
    // SAFETY: as above.
    let (world, return_errors) = unsafe { (ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
    let keep_errors = |comm| {
        // SAFETY: the communicator exists, and the handler is MPI's own.
        check(unsafe { ffi::MPI_Comm_set_errhandler(comm, return_errors) }, || "set its error handler".into())
    };
    if ours {
        // Some errors belong to no communicator and go to this one's handler, which would end the process.
        keep_errors(world)?;
    }
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the communicator exists, and both results are locals.
    check(unsafe { ffi::MPI_Comm_rank(world, &mut rank) }, || "tell the rank".into())?;
    // SAFETY: as above.
    check(unsafe { ffi::MPI_Comm_size(world, &mut size) }, || "tell the number of ranks".into())?;
    let largest_tag = checked::largest_tag(&turn, world)?;
    let comm = duplicate(world, turn, deadline)?;
    keep_errors(comm.0)?;
    let number = |value: c_int| usize::try_from(value).unwrap_or(0);
    Ok(Library {
        comm,
        rank: number(rank),
        size: number(size),
        version,
        largest_tag,
        groups: AtomicU64::new(0),
        ours,
        failed: AtomicBool::new(false),
        running: AtomicUsize::new(0),
    })
}

/// A communicator of our own, so that no message of ours meets one of the program.
///
/// The non-blocking form: ranks may come here at different times, or not at all.
fn duplicate(world: ffi::MPI_Comm, turn: Turn, deadline: Deadline) -> Result<Comm, Fault> {
    const ACTION: &str = "copy its world communicator";
    // MPI writes to it when the request completes, which after an error may be never: such a copy is left alone.
    let comm: &mut ffi::MPI_Comm = Box::leak(Box::new(world));
    let mut request = checked::null_request();
    // SAFETY: the place for the result is never freed.
    check(unsafe { ffi::MPI_Comm_idup(world, comm, &mut request) }, || ACTION.into())?;
    drop(turn);
    wait(request, ACTION, deadline)?;
    Ok(Comm(*comm))
}

/// Waits for a request whose memory lives for ever.
pub(super) fn wait(mut request: ffi::MPI_Request, action: &str, deadline: Deadline) -> Result<(), Fault> {
    while !checked::test(&Turn::wait(action)?, &mut request, action)? {
        if deadline.expired() {
            let text = format!("not all ranks came within {:.1?}", deadline.elapsed());
            return Err(Fault::ours(action, text));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn is_initialized() -> Result<bool, Fault> {
    let (mut initialized, mut finalized) = (0, 0);
    // SAFETY: both calls are allowed at any time, and write to locals.
    check(unsafe { ffi::MPI_Initialized(&mut initialized) }, || "tell whether it is initialized".into())?;
    // SAFETY: as above.
    check(unsafe { ffi::MPI_Finalized(&mut finalized) }, || "tell whether it is finalized".into())?;
    if finalized != 0 {
        return Err(Fault::ours("start", "the program has finalized MPI already"));
    }
    Ok(initialized != 0)
}

fn initialize_threads() -> Result<c_int, Fault> {
    let mut level = 0;
    // SAFETY: null arguments are allowed, MPI is not initialized, and the result is a local.
    let code = unsafe {
        ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), ffi::RSMPI_THREAD_MULTIPLE, &mut level)
    };
    check(code, || "initialize".into()).map(|()| level)
}

fn thread_level() -> Result<c_int, Fault> {
    let mut level = 0;
    // SAFETY: MPI is initialized, and the result is a local.
    check(unsafe { ffi::MPI_Query_thread(&mut level) }, || "tell its thread level".into()).map(|()| level)
}

impl Library {
    /// A tag for a new group whose first rank is this process: no other group that shares two ranks with it has the same.
    ///
    /// Each process has numbers of its own, so groups can be made at the same time in any order.
    pub(super) fn new_tag(&self) -> Result<c_int, Fault> {
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        let tag = number.checked_mul(self.size as u64).and_then(|tag| tag.checked_add(self.rank as u64));
        tag.and_then(|tag| c_int::try_from(tag).ok()).filter(|tag| *tag <= self.largest_tag).ok_or_else(
            || {
                let text = format!(
                    "{number} groups are all that its tags can tell apart; keep groups and reuse them"
                );
                Fault::ours("make another group", text)
            },
        )
    }
}

/// Finalizes MPI when the program exits. The other threads are alive then; a panic here would have nowhere to go.
extern "C" fn at_exit() {
    let mut state = state();
    let State::Ready(library) = &*state else { return };
    if library.failed.load(Ordering::Acquire) || library.running.load(Ordering::Acquire) > 0 {
        return;
    }
    *state = State::Finalizing;
    CHANGED.notify_all();
    let waited = CHANGED.wait_timeout_while(state, FINALIZE_LIMIT, |state| !matches!(state, State::Over));
    drop(waited);
}
