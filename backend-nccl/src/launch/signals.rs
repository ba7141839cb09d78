use super::error::LaunchError;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc::{self, c_int, c_void, siginfo_t},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};
use std::{
    io::{self, PipeReader, PipeWriter, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

/// A second signal before this has passed is the same one, sent to a process and to its group as `timeout` does.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// Signals that end the job: they are passed on to the ranks, which have the grace to end.
const ENDING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that are passed on and mean whatever the ranks make of them.
const MESSAGES: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// Never closed once open, so that a handler which runs late cannot write to another file of the same number.
static PIPE: OnceLock<(PipeReader, PipeWriter)> = OnceLock::new();
static PIPE_WRITER: AtomicI32 = AtomicI32::new(-1);
static IN_USE: AtomicBool = AtomicBool::new(false);

/// A signal to pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: Signal,
    /// It came from the terminal, which has sent it to the launcher's whole process group.
    pub(super) from_terminal: bool,
}

impl Received {
    /// Whether it ends the job.
    pub(super) fn is_ending(self) -> bool {
        ENDING.contains(&self.signal)
    }
}

/// What an ending signal to this launcher means, by those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// The first one asks the ranks to end.
    End,
    /// It is the first one once more.
    Same,
    /// The user does not want to wait for the ranks any longer.
    Kill,
}

/// The user's requests to end the job, from its first attempt to its last. What other nodes ask for does not count: who
/// sends one signal to each launcher has not asked twice.
#[derive(Debug, Default)]
pub(super) struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// Takes note of an ending signal that this launcher has got.
    pub(super) fn note(&mut self, now: Instant) -> Request {
        match self.first {
            None => {
                self.first = Some(now);
                Request::End
            }
            Some(first) if now.saturating_duration_since(first) < SECOND_SIGNAL => Request::Same,
            Some(_) => Request::Kill,
        }
    }
}

/// Takes the launcher's signals, and news of ended children, from a pipe; the program's own handlers come back when
/// this value is dropped.
pub(super) struct Signals {
    previous: Vec<(Signal, SigAction)>,
}

impl Signals {
    pub(super) fn install() -> Result<Self, LaunchError> {
        if IN_USE.swap(true, Ordering::AcqRel) {
            return Err(LaunchError::AlreadyLaunching);
        }
        // From here on a drop on an error path restores what was replaced and ends the use.
        let mut signals = Self { previous: Vec::new() };
        signals.replace_handlers().map_err(LaunchError::system("handle signals"))?;
        Ok(signals)
    }

    fn replace_handlers(&mut self) -> io::Result<()> {
        let (mut reader, writer) = pipe()?;
        // Bytes of an earlier launch in this process.
        while reader.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        PIPE_WRITER.store(writer.as_raw_fd(), Ordering::Release);
        // SA_RESTART: other threads of the program do not expect interrupted calls.
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_RESTART;
        let ours = SigAction::new(SigHandler::SigAction(on_signal), flags, SigSet::empty());
        for signal in ENDING.into_iter().chain(MESSAGES).chain([Signal::SIGCHLD]) {
            // SAFETY: `on_signal` is async-signal-safe: atomics and one write.
            let previous = unsafe { sigaction(signal, &ours) }?;
            if matches!(previous.handler(), SigHandler::SigIgn) && signal != Signal::SIGCHLD {
                // Ignored on purpose, as by nohup.
                // SAFETY: puts back an action that was in place.
                unsafe { sigaction(signal, &previous) }?;
            } else {
                self.previous.push((signal, previous));
            }
        }
        Ok(())
    }

    /// Waits for a signal, the end of a child, or something to read from `also`, at most `limit`.
    pub(super) fn wait(&self, limit: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<Vec<Received>> {
        let (mut reader, _) = pipe()?;
        // Rounded up: a wait that ends a little early would be repeated without a pause.
        let limit = limit.saturating_add(Duration::from_millis(1));
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let fds = [Some(reader.as_fd()), also];
        let mut fds: Vec<_> =
            fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 128];
        let count = match reader.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let decode = |pair: &[u8]| {
            let signal = Signal::try_from(i32::from(pair[0])).ok()?;
            (signal != Signal::SIGCHLD).then_some(Received { signal, from_terminal: pair[1] != 0 })
        };
        Ok(bytes[..count].chunks_exact(2).filter_map(decode).collect())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, previous) in &self.previous {
            // SAFETY: puts back an action that was in place.
            let _ = unsafe { sigaction(*signal, previous) };
        }
        IN_USE.store(false, Ordering::Release);
    }
}

fn pipe() -> io::Result<(&'static PipeReader, &'static PipeWriter)> {
    if PIPE.get().is_none() {
        let (reader, writer) = io::pipe()?;
        // A handler must not wait for room, and `wait` must not wait for more than it was told.
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let _ = PIPE.set((reader, writer));
    }
    let (reader, writer) = PIPE.get().expect("set above");
    Ok((reader, writer))
}

/// Writes the signal's number and origin to the pipe, 2 bytes at once.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the system passes a valid `info` to a handler with SA_SIGINFO.
    let from_terminal = unsafe { (*info).si_code } == SI_KERNEL;
    let record = [signal as u8, u8::from(from_terminal)];
    // SAFETY: `record` is valid for its length. A full pipe holds thousands of signals, so one more adds nothing.
    unsafe { libc::write(PIPE_WRITER.load(Ordering::Acquire), record.as_ptr().cast(), record.len()) };
    Errno::set_raw(errno);
}

/// The code of a signal that no process has sent.
#[cfg(target_os = "linux")]
const SI_KERNEL: c_int = libc::SI_KERNEL;
/// Elsewhere the terminal's signals carry the code 0 of BSD kernels.
#[cfg(not(target_os = "linux"))]
const SI_KERNEL: c_int = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_a_second_after_the_first_is_a_second_one() {
        let (mut requests, start) = (Requests::default(), Instant::now());
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let found = [0, 999, 1000, 5000].map(|milliseconds| requests.note(after(milliseconds)));
        assert_eq!(found, [Request::End, Request::Same, Request::Kill, Request::Kill]);
    }
}
