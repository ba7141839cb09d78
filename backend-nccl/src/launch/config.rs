use super::error::LaunchError;
use crate::rendezvous::{Secret, join_host_port};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// Time between `SIGTERM` and `SIGKILL` when nothing else is asked for, the same as `torchrun`'s.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Where the nodes of a job meet when nothing else is asked for, as with `torchrun`.
const DEFAULT_COORDINATOR_PORT: u16 = 29500;

/// Time that nodes wait for each other.
const DEFAULT_RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(300);

/// Silence after which a node counts as lost.
const DEFAULT_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Ranks of one node, far more than any has cores. What another node says beyond it is a mistake or an attack.
pub(super) const MAX_RANKS: usize = 4096;

/// Where a rank's stdout and stderr go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankOutput {
    /// To the launcher's stdout and stderr in whole lines that start with `[rank r] `, and to the rank's log file.
    Prefixed,
    /// To the rank's log file only.
    LogOnly,
    /// Straight to the launcher's stdout and stderr, so that a progress bar sees the terminal. No log file is
    /// written and the launcher cannot repeat the rank's last lines when it fails.
    Inherit,
    /// As `Inherit`, and the rank may read the terminal and change its mode, as a full-screen dashboard does.
    ///
    /// Only rank 0 can have it. The rank then stays in the launcher's process group, because a terminal stops
    /// any other group that touches it; so signals reach the rank alone and not what it has started.
    Terminal,
}

impl RankOutput {
    /// Whether the launcher reads the rank's output.
    pub(super) fn is_captured(self) -> bool {
        matches!(self, Self::Prefixed | Self::LogOnly)
    }
}

/// What to launch and how; see the [module](super) for what it does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LaunchConfig {
    /// The program of every rank, looked up in `PATH` where it has no `/`.
    pub program: OsString,
    /// The program's arguments, the same for every rank.
    pub args: Vec<OsString>,
    /// Ranks on this node, at least 1 and at most 4096. Nodes may have different numbers.
    pub nproc_per_node: usize,
    /// Nodes of the job, on each of which a launcher runs; default 1.
    pub nnodes: usize,
    /// This node's number, from 0; default 0. The ranks of node 0 come first.
    pub node_rank: usize,
    /// Host name or address of node 0, where rank 0 is; default `127.0.0.1`.
    pub master_addr: String,
    /// With one node the port at which its ranks meet, where `None` (the default) takes a free one. With several nodes the
    /// port at which the launchers meet, by default 29500; their ranks always get a free one of node 0.
    pub master_port: Option<u16>,
    /// How often all ranks are started again after a failure; default 0.
    pub max_restarts: usize,
    /// Time that nodes wait for each other, at the start and after a failure; default 300 s.
    pub rendezvous_timeout: Duration,
    /// Silence after which the launcher of another node counts as lost; default 10 s.
    pub heartbeat_timeout: Duration,
    /// What launchers of several nodes prove to each other; default `None`, which lets in whoever comes.
    pub secret: Option<Secret>,
    /// Variables for every rank, over the inherited ones. They cannot replace those that make a rank a rank.
    pub env: Vec<(OsString, OsString)>,
    /// Variables for each rank by local rank, over `env`; empty, or one list per rank of this node.
    pub rank_env: Vec<Vec<(OsString, OsString)>>,
    /// Compute threads of each rank; `None` (the default) divides the cores unless the user's variables say otherwise.
    pub threads_per_rank: Option<usize>,
    /// Time that ranks have to end after a signal before they are killed; default 30 s.
    pub grace: Duration,
    /// The same for ranks that are ended because another one has failed; `None` (the default) takes `grace`.
    pub grace_after_failure: Option<Duration>,
    /// Folder for `rank-N.log`, made if it is missing; a log that exists is appended to. Those of the first restart are in
    /// `restart-1` in it, and so on.
    pub log_dir: Option<PathBuf>,
    /// File for the end of the job as JSON: its exit code, and each failure with rank, node, host, process and cause.
    pub report: Option<PathBuf>,
    /// The ranks of this node, by local rank, whose prefixed output is shown; `None` (the default) shows all. That of the
    /// others is read all the same, for their logs and for the report of a failure.
    pub local_ranks_filter: Option<Vec<usize>>,
    /// Output of rank 0.
    pub rank_zero_output: RankOutput,
    /// Output of all ranks but rank 0.
    pub other_output: RankOutput,
}

impl LaunchConfig {
    /// A launch of `program` in `nproc_per_node` processes, everything else at its default.
    pub fn new(program: impl Into<OsString>, nproc_per_node: usize) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            nproc_per_node,
            nnodes: 1,
            node_rank: 0,
            master_addr: "127.0.0.1".to_owned(),
            master_port: None,
            max_restarts: 0,
            rendezvous_timeout: DEFAULT_RENDEZVOUS_TIMEOUT,
            heartbeat_timeout: DEFAULT_HEARTBEAT_TIMEOUT,
            secret: None,
            env: Vec::new(),
            rank_env: Vec::new(),
            threads_per_rank: None,
            grace: DEFAULT_GRACE,
            grace_after_failure: None,
            log_dir: None,
            report: None,
            local_ranks_filter: None,
            rank_zero_output: RankOutput::Prefixed,
            other_output: RankOutput::Prefixed,
        }
    }

    /// A launch of the running program itself, without arguments.
    ///
    /// # Errors
    /// [`LaunchError::ThisProgram`] where the system does not tell the program's file.
    pub fn this_program(nproc_per_node: usize) -> Result<Self, LaunchError> {
        let program = std::env::current_exe().map_err(|source| LaunchError::ThisProgram { source })?;
        Ok(Self::new(program, nproc_per_node))
    }

    /// Output of `rank`.
    pub(super) fn output_of(&self, rank: usize) -> RankOutput {
        if rank == 0 { self.rank_zero_output } else { self.other_output }
    }

    /// Whether the output of `rank` is shown line by line.
    pub(super) fn is_shown(&self, rank: usize, local_rank: usize) -> bool {
        let is_chosen = self.local_ranks_filter.as_ref().is_none_or(|shown| shown.contains(&local_rank));
        self.output_of(rank) == RankOutput::Prefixed && is_chosen
    }

    /// Where the launchers of several nodes meet.
    pub(super) fn coordinator_port(&self) -> u16 {
        self.master_port.unwrap_or(DEFAULT_COORDINATOR_PORT)
    }

    /// That place, for messages.
    pub(super) fn coordinator_address(&self) -> String {
        join_host_port(&self.master_addr, self.coordinator_port())
    }

    /// Refuses a configuration that cannot work or has a part without effect.
    pub(super) fn validate(&self) -> Result<(), LaunchError> {
        let ranks = self.nproc_per_node;
        if ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        if ranks > MAX_RANKS {
            return Err(LaunchError::TooManyRanks { ranks, most: MAX_RANKS });
        }
        let (node, nnodes) = (self.node_rank, self.nnodes);
        if node >= nnodes {
            return Err(LaunchError::NodeRank { node, nnodes });
        }
        let mut shown = self.local_ranks_filter.iter().flatten();
        if let Some(&local_rank) = shown.find(|local_rank| **local_rank >= ranks) {
            return Err(LaunchError::UnknownLocalRank { local_rank, ranks });
        }
        if !self.rank_env.is_empty() && self.rank_env.len() != ranks {
            return Err(LaunchError::RankEnvLength { expected: ranks, found: self.rank_env.len() });
        }
        if self.other_output == RankOutput::Terminal {
            return Err(LaunchError::SharedTerminal);
        }
        // Rank 0 is on node 0.
        let mut outputs = (0..ranks).map(|local_rank| self.output_of(node + local_rank));
        match self.log_dir {
            None if outputs.any(|output| output == RankOutput::LogOnly) => Err(LaunchError::NoLogDir),
            Some(_) if !outputs.any(RankOutput::is_captured) => Err(LaunchError::UnusedLogDir),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut LaunchConfig)) -> Result<(), LaunchError> {
        let mut config = LaunchConfig::new("train", 2);
        change(&mut config);
        config.validate()
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        assert!(with(|_| ()).is_ok());
        assert!(matches!(with(|c| c.nproc_per_node = 0), Err(LaunchError::NoRanks)));
        let too_many = with(|c| c.nproc_per_node = 4097);
        assert!(matches!(too_many, Err(LaunchError::TooManyRanks { ranks: 4097, most: 4096 })));
        assert!(matches!(
            with(|c| c.rank_env = vec![Vec::new()]),
            Err(LaunchError::RankEnvLength { expected: 2, found: 1 })
        ));
        assert!(matches!(with(|c| c.node_rank = 1), Err(LaunchError::NodeRank { node: 1, nnodes: 1 })));
        assert!(matches!(with(|c| c.nnodes = 0), Err(LaunchError::NodeRank { .. })));
        let unknown = with(|c| c.local_ranks_filter = Some(vec![0, 2]));
        assert!(matches!(unknown, Err(LaunchError::UnknownLocalRank { local_rank: 2, ranks: 2 })));
        assert!(matches!(with(|c| c.other_output = RankOutput::Terminal), Err(LaunchError::SharedTerminal)));
        assert!(matches!(with(|c| c.other_output = RankOutput::LogOnly), Err(LaunchError::NoLogDir)));
    }

    #[test]
    fn a_log_folder_needs_a_rank_whose_output_is_read() {
        let inherit_all = |c: &mut LaunchConfig| {
            c.log_dir = Some("logs".into());
            c.rank_zero_output = RankOutput::Inherit;
            c.other_output = RankOutput::Inherit;
        };
        assert!(matches!(with(inherit_all), Err(LaunchError::UnusedLogDir)));
        assert!(
            with(|c| {
                inherit_all(c);
                c.other_output = RankOutput::LogOnly;
            })
            .is_ok()
        );
    }
}
