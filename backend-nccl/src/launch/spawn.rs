use super::{
    config::{LaunchConfig, RankOutput},
    environment::{Job, NOT_INHERITED, rank_variables},
    error::LaunchError,
    guard::{self, Guard},
    outcome::{Ending, STOPPED_EXIT_CODE},
    output::{Channel, Stream},
    report::seconds_since_epoch,
};
use nix::{
    errno::Errno,
    libc,
    sys::signal::{Signal, kill},
    unistd::{Pid, getpid, getppid},
};
use std::{
    fs::{self, File},
    io,
    os::{fd::RawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

/// One rank's process, from its start until the job is over.
///
/// A rank that has ended is not reaped before the value is dropped: until then its number, and that of its process group,
/// belong to nobody else, so a signal can reach no stranger.
pub(super) struct RankProcess {
    pub(super) local_rank: usize,
    pub(super) error_file: PathBuf,
    pub(super) log: Option<PathBuf>,
    child: Child,
    /// Whether the rank leads a process group of its own.
    leads_group: bool,
    pub(super) ended: Option<Ended>,
    /// The launcher has sent this rank a signal before it ended.
    pub(super) was_signalled: bool,
}

/// How and when a rank was seen to have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    /// Seconds since 1970-01-01 UTC.
    pub(super) at: f64,
}

impl RankProcess {
    /// Starts the rank with this number on its node. Returns its streams too, if the launcher is to read them.
    ///
    /// The rank is tied to the calling thread: it is killed when that thread ends.
    pub(super) fn start(
        job: &Job,
        local_rank: usize,
        error_folder: &Path,
        guard: &Guard,
    ) -> Result<(Self, Vec<Stream>), LaunchError> {
        let (config, rank) = (job.config, job.attempt.first_rank + local_rank);
        let output = config.output_of(rank);
        let error_file = error_folder.join(format!("rank-{rank}.json"));
        let log = job.log_folder().filter(|_| output.is_captured());
        let log = log.map(|folder| folder.join(format!("rank-{rank}.log")));
        let log_file = log.as_deref().map(open_log).transpose()?;
        let mut command = Command::new(&config.program);
        let is_inherited = |name: &std::ffi::OsStr| std::env::var_os(name).is_some();
        command.args(&config.args).envs(rank_variables(job, local_rank, &error_file, is_inherited));
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        let leads_group = output != RankOutput::Terminal;
        if leads_group {
            // A process outside of the terminal's foreground group that reads it would be stopped.
            command.stdin(Stdio::null()).process_group(0);
        }
        if output.is_captured() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        tie_to_launcher(&mut command, leads_group.then(|| guard.entry()));
        let mut child = command.spawn().map_err(|source| start_error(config, rank, source))?;
        let is_shown = config.is_shown(rank, local_rank);
        let place = (rank, local_rank);
        let stdout = child
            .stdout
            .take()
            .map(|pipe| Stream::new(place, Channel::Stdout, pipe, is_shown, log_file.clone()));
        let stderr =
            child.stderr.take().map(|pipe| Stream::new(place, Channel::Stderr, pipe, is_shown, log_file));
        let process =
            Self { local_rank, error_file, log, child, leads_group, ended: None, was_signalled: false };
        Ok((process, stdout.into_iter().chain(stderr).collect()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the rank has ended otherwise than with success or with the wish to go on later.
    pub(super) fn has_failed(&self) -> bool {
        self.ended.is_some_and(|ended| ended.ending.is_failure())
    }

    /// Whether the rank has left to go on later.
    pub(super) fn has_left(&self) -> bool {
        self.ended.is_some_and(|ended| ended.ending == Ending::Code(STOPPED_EXIT_CODE))
    }

    /// Whether the rank shares the launcher's process group, so that the terminal signals both.
    pub(super) fn shares_terminal(&self) -> bool {
        !self.leads_group
    }

    /// Sends `signal` to the rank and to what it has started, whether or not the rank itself has ended.
    pub(super) fn signal(&mut self, signal: Signal) {
        match self.ended {
            Some(Ended { ending: Ending::Lost, .. }) => return,
            Some(_) if self.shares_terminal() => return,
            Some(_) => {}
            None => self.was_signalled = true,
        }
        let pid = self.child.id() as i32;
        // Fails only where there is nobody left to signal.
        let _ = kill(Pid::from_raw(if self.leads_group { -pid } else { pid }), signal);
    }

    /// Passes on a signal that does not ask the rank to end.
    pub(super) fn pass_on(&mut self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
        }
    }

    /// Sees whether the rank has ended, without reaping it.
    pub(super) fn observe(&mut self) {
        if self.ended.is_none()
            && let Some(ending) = ending_of(self.child.id())
        {
            self.ended = Some(Ended { ending, at: seconds_since_epoch() });
        }
    }
}

impl Drop for RankProcess {
    /// Leaves nothing of the rank behind.
    fn drop(&mut self) {
        match self.ended.map(|ended| ended.ending) {
            // Its number may be a stranger's by now, or it would never be waited for to the end.
            Some(Ending::Lost | Ending::Unkillable) => return,
            Some(_) if self.shares_terminal() => {}
            _ => self.signal(Signal::SIGKILL),
        }
        let _ = self.child.wait();
    }
}

/// Makes the child kill itself when the launcher is gone, and enter its process group with the guard.
fn tie_to_launcher(command: &mut Command, guard_entry: Option<RawFd>) {
    let launcher = getpid();
    let tie = move || {
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The launcher may have died before the line above took effect.
        if getppid() != launcher {
            return Err(io::Error::from(Errno::ESRCH));
        }
        match guard_entry {
            Some(entry) => guard::enter(entry, -getpid().as_raw()),
            None => Ok(()),
        }
    };
    // SAFETY: `tie` runs between fork and exec and makes system calls only; its errors carry a number and allocate nothing.
    unsafe { command.pre_exec(tie) };
}

/// Tells a machine that is short of something from a program that cannot be started.
fn start_error(config: &LaunchConfig, rank: usize, source: io::Error) -> LaunchError {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => {
            LaunchError::System { action: "start a process for each rank", source }
        }
        _ => LaunchError::Program { program: config.program.clone(), rank, source },
    }
}

/// How the child `pid` ended, or `None` while it runs.
fn ending_of(pid: u32) -> Option<Ending> {
    // SAFETY: all bytes zero is a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writes; WNOWAIT leaves the child to be reaped by its owner.
    let failed = unsafe { libc::waitid(libc::P_PID, pid, &mut info, flags) } != 0;
    // SAFETY: `waitid` has filled in a child's change of state, or left zeros.
    let (changed, status) = unsafe { (info.si_pid(), info.si_status()) };
    match info.si_code {
        // Somebody else in this process has reaped our child; nothing more can be known of it.
        _ if failed => Some(Ending::Lost),
        _ if changed == 0 => None,
        libc::CLD_EXITED => Some(Ending::Code(status)),
        _ => Some(Ending::Signal(status)),
    }
}

/// Appends: a log of an earlier run in the same folder may be all that is left of it.
fn open_log(path: &Path) -> Result<Arc<File>, LaunchError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let opened =
        fs::create_dir_all(folder).and_then(|()| File::options().create(true).append(true).open(path));
    opened.map(Arc::new).map_err(|source| LaunchError::File { path: path.to_owned(), source })
}
