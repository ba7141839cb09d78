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

    /// More ranks than a node can have.
    #[error("cannot launch {ranks} ranks on one node: at most {most} are possible; use more nodes")]
    TooManyRanks {
        /// Ranks of this node.
        ranks: usize,
        /// The most there can be.
        most: usize,
    },

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

    /// The node's number is not one of the job's.
    #[error("node {node} is not one of {nnodes}: give each node its own number from 0 to {}", nnodes.saturating_sub(1))]
    NodeRank {
        /// The number that was given.
        node: usize,
        /// The number of nodes.
        nnodes: usize,
    },

    /// Ranks whose output is to be shown are not there.
    #[error("rank {local_rank} is to be shown, but this node has {ranks} ranks, counted from 0: name others")]
    UnknownLocalRank {
        /// The rank's number on the node.
        local_rank: usize,
        /// The number of ranks on the node.
        ranks: usize,
    },

    /// A secret that is none.
    #[error(
        "the secret in {origin} {found}, expected at least 32 hexadecimal digits, such as `openssl rand -hex 32` prints; \
         give the same one to all nodes"
    )]
    Secret {
        /// The file or variable.
        origin: String,
        /// What is wrong with it, without showing it.
        found: String,
    },

    /// The file of the secret cannot be read.
    #[error("cannot read the secret in {}: {source}; check the path and that you may read it", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },

    /// Node 0 did not answer, or did not take this node, within the time limit.
    #[error(
        "node {node} did not reach node 0 at {address} within {seconds:.1} s: {source}; check the master address and \
         port, that burnrun runs on node 0, and that no firewall is between the two"
    )]
    Unreachable {
        /// This node.
        node: usize,
        /// Where node 0 was looked for.
        address: String,
        /// How long.
        seconds: f64,
        /// Why the last attempt failed.
        source: io::Error,
    },

    /// Node 0 does not take this node.
    #[error("node 0 at {address} refused node {node}: {reason}")]
    Refused {
        /// This node.
        node: usize,
        /// Where node 0 is.
        address: String,
        /// Its words.
        reason: String,
    },

    /// Not all nodes came.
    #[error(
        "{} did not come within {seconds:.1} s: start burnrun on each node with the same --nnodes, --master-addr and \
         --master-port, or allow more time",
        super::coordinator::nodes(missing)
    )]
    NodesMissing {
        /// The nodes.
        missing: Vec<usize>,
        /// How long the others waited.
        seconds: f64,
    },

    /// The ranks of another node did not start.
    #[error("node {node} on host {host} did not start its ranks: {reason}")]
    OtherNode {
        /// The node.
        node: usize,
        /// Its host.
        host: String,
        /// Its error.
        reason: String,
    },

    /// The launcher of node 0 has gone, and with it who decides for all nodes. The ranks of this node were ended.
    #[error(
        "the launcher of node 0 at {address} was lost: {why}; the ranks of this node were ended; start the job again \
         on all nodes"
    )]
    CoordinatorLost {
        /// Where it was.
        address: String,
        /// How it was seen.
        why: String,
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
