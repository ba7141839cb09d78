use std::{ffi::OsString, io, path::PathBuf};

/// Why a job could not be started or watched.
///
/// A rank that fails after it has started is not an error of the launcher: see [`Outcome`](super::Outcome).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The job has no rank.
    #[error("cannot launch 0 ranks: a job needs at least one; set the ranks per node to 1 or more")]
    NoRanks,

    /// Neither a number of ranks nor the word auto.
    #[error("{given:?} is not a number of ranks: give a whole number of at least 1, or auto")]
    NprocPerNode {
        /// What was given.
        given: String,
    },

    /// `rank_env` is neither empty nor as long as the job has ranks.
    #[error(
        "variables are given for {found} ranks but the job has {expected}: give one list per rank, or none at all"
    )]
    RankEnvLength {
        /// Ranks of the job.
        expected: usize,
        /// Lists in `rank_env`.
        found: usize,
    },

    /// Several ranks were to own the terminal.
    #[error("only rank 0 can own the terminal: choose another output for the other ranks")]
    SharedTerminal,

    /// A rank's output was to go to a log file only, and there is no folder for it.
    #[error(
        "output goes to log files only but no log folder is given, so it would be lost: give a log folder"
    )]
    NoLogDir,

    /// A log folder was given and no rank would write to it.
    #[error(
        "a log folder is given but all ranks write straight to the launcher's output, so it would stay empty: \
         let the ranks' lines be prefixed, or give no log folder"
    )]
    UnusedLogDir,

    /// The program of a rank did not start.
    #[error(
        "cannot start {program:?} as rank {rank}: {source}; check the path and that the file is executable \
         (a program outside of PATH needs its folder, as in ./train)"
    )]
    Program {
        /// The program as it was given.
        program: OsString,
        /// The rank which did not start; ranks below it had started and were ended.
        rank: usize,
        /// The operating system's reason.
        source: io::Error,
    },

    /// The file name of the running program is not known.
    #[error("cannot find the file of the running program: {source}; name the program to launch")]
    ThisProgram {
        /// The operating system's reason.
        source: io::Error,
    },

    /// The master port cannot be had.
    #[error(
        "cannot use port {port} for the rendezvous: {source}; choose another master port, or none to get a free one"
    )]
    Port {
        /// The port that was asked for.
        port: u16,
        /// The operating system's reason.
        source: io::Error,
    },

    /// The system gave no free port.
    #[error("cannot find a free port for the rendezvous: {source}; name a master port")]
    NoFreePort {
        /// The operating system's reason.
        source: io::Error,
    },

    /// A folder or file of the launcher cannot be written.
    #[error("cannot write {}: {source}; check that the folder exists, is writable and has space", path.display())]
    File {
        /// The folder or file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },

    /// The system refused what the launcher needs to watch its ranks.
    #[error("cannot {action}: {source}; check the limits on processes and open files (ulimit -a)")]
    System {
        /// What was tried, as in "start the guard process".
        action: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },

    /// Another launch is under way in this process; signals can be forwarded to one job only.
    #[error(
        "another launch is running in this process: wait for it to end, or launch from a process of its own"
    )]
    AlreadyLaunching,
}

impl LaunchError {
    /// For `map_err` on calls whose failure has no remedy of its own.
    pub(super) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}
