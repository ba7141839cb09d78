use super::error::LaunchError;
use nix::{
    errno::Errno,
    libc,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill},
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork},
};
use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsRawFd, RawFd},
};

/// A small process that outlives the launcher by a moment, to kill what the launcher can no longer kill.
///
/// It reads a pipe whose write end only the launcher holds. Each record is the argument of a `kill`: a rank's process
/// group as a negative number. When the pipe closes, the launcher has died, whatever killed it, and the guard sends
/// `SIGKILL` to all it has read. `PR_SET_PDEATHSIG` alone would reach the ranks but not what they have started.
///
/// A group's number cannot pass to strangers while the guard may use it: the launcher ends the guard before it
/// reaps a rank, and a group with a living member keeps its number.
pub(super) struct Guard {
    pid: Pid,
    pipe: PipeWriter,
}

impl Guard {
    /// Starts the guard of up to `capacity` targets. Start it before anything that it should not hold open.
    pub(super) fn start(capacity: usize) -> Result<Self, LaunchError> {
        const ACTION: &str = "start the guard process";
        let (reader, pipe) = io::pipe().map_err(LaunchError::system(ACTION))?;
        let mut targets = vec![0; capacity];
        // The guard is born with all signals blocked, so no handler of the launcher ever runs in it.
        let mask =
            SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(LaunchError::system(ACTION))?;
        // SAFETY: the process may have other threads, so the child must not allocate or take a lock until it ends;
        // `stand_guard` makes system calls only, on memory allocated above, and never returns.
        let forked = unsafe { fork() };
        if let Ok(ForkResult::Child) = forked {
            stand_guard(&reader, pipe.as_raw_fd(), &mut targets);
        }
        let restored = mask.thread_set_mask();
        match forked.map_err(LaunchError::system(ACTION))? {
            ForkResult::Parent { child } => {
                restored.map_err(LaunchError::system(ACTION))?;
                Ok(Self { pid: child, pipe })
            }
            ForkResult::Child => unreachable!("the guard ends in stand_guard"),
        }
    }

    /// Where a rank enters itself between fork and exec, so that there is no moment in which it runs unguarded.
    pub(super) fn entry(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }
}

impl Drop for Guard {
    /// Ends the guard before its pipe closes: the launcher has ended its ranks itself.
    fn drop(&mut self) {
        // Fails only if the guard is gone already.
        let _ = kill(self.pid, Signal::SIGKILL);
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}

/// Enters `target` with the guard behind `entry`. Async-signal-safe: makes one system call.
pub(super) fn enter(entry: RawFd, target: i32) -> io::Result<()> {
    let record = target.to_ne_bytes();
    // SAFETY: `record` is valid for its length; a bad descriptor is reported as EBADF.
    let written = unsafe { libc::write(entry, record.as_ptr().cast(), record.len()) };
    if written == record.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The guard's life. Runs after a fork in a process that may have had other threads: system calls only.
fn stand_guard(reader: &PipeReader, writer: RawFd, targets: &mut [i32]) -> ! {
    let reader = reader.as_raw_fd();
    leave_the_launcher(reader, writer);
    let mut count = 0;
    loop {
        let mut record = [0u8; 4];
        // A pipe passes records of this size whole, in both directions.
        // SAFETY: `record` is valid for its length.
        let read = unsafe { libc::read(reader, record.as_mut_ptr().cast(), record.len()) };
        match (read, i32::from_ne_bytes(record)) {
            (4, target) => {
                if let Some(slot) = targets.get_mut(count) {
                    *slot = target;
                    count += 1;
                }
            }
            (-1, _) if Errno::last() == Errno::EINTR => {}
            _ => break,
        }
    }
    for target in targets.iter().take(count) {
        // SAFETY: signals the process groups which the launcher made, see `Guard`.
        unsafe { libc::kill(*target, libc::SIGKILL) };
    }
    // SAFETY: `_exit` runs none of the launcher's exit handlers.
    unsafe { libc::_exit(0) }
}

/// Parts the guard from the launcher: a session of its own, so that what ends the launcher's group or terminal spares
/// it; another name, so that `killall` does; no file but the pipe, so that nobody waits for the guard to close one.
fn leave_the_launcher(reader: RawFd, writer: RawFd) {
    // SAFETY: these calls take plain numbers and a static C string. Failures leave a guard that still works.
    unsafe {
        libc::setsid();
        libc::close(writer);
        #[cfg(target_os = "linux")]
        {
            libc::prctl(libc::PR_SET_NAME, c"burn-nccl-guard".as_ptr());
            libc::syscall(libc::SYS_close_range, 0, reader - 1, 0);
            libc::syscall(libc::SYS_close_range, reader + 1, u32::MAX, 0);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = reader;
    }
}
