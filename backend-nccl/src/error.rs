//! What can go wrong below the tensors, one variant for each thing that a caller can act on.

use std::{fmt, io, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    rendezvous::Refusal,
    transport::{DType, OpKind, ReduceOp, Signature},
};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the launch environment, the rendezvous or a collective.
///
/// Each text says what failed, why, and what to do. It is `Clone` because a failed group answers every later call
/// with the cause that ended it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some variables of a launcher are set and others are not.
    #[error(
        "the environment of {launcher} is incomplete: {missing} not set while {found} set; start the program with \
         burnrun, torchrun, mpirun or srun, or unset the rest to run as a single process"
    )]
    EnvironmentIncomplete {
        /// Whose variables were found: `torchrun`, `Open MPI` or `SLURM`.
        launcher: &'static str,
        /// The variables that are set, joined for reading.
        found: String,
        /// The variables that are not, joined for reading.
        missing: String,
    },
    /// A variable is set to something that cannot be meant.
    #[error(
        "the environment variable {name} is `{value}`, expected {expected}; correct it or let a launcher set it"
    )]
    EnvironmentInvalid {
        /// The variable.
        name: String,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: String,
    },
    /// Rank 0 cannot serve the rendezvous because the port is taken.
    #[error(
        "rank 0 cannot listen on {address}: the port is in use by another program; set MASTER_PORT to a free port, \
         or let burnrun choose one"
    )]
    PortInUse {
        /// The address that was tried.
        address: String,
    },
    /// A listening socket could not be made for another reason.
    #[error(
        "cannot listen on {address}: {source}; MASTER_ADDR must be an address of the machine that runs rank 0"
    )]
    Listen {
        /// The address that was tried.
        address: String,
        /// The operating system's reason.
        source: Arc<io::Error>,
    },
    /// Nobody that speaks the protocol answered before the deadline.
    #[error(
        "rank {rank} could not connect to {target} at {address} within {waited:.1?}: {last}; check that it runs, \
         that MASTER_ADDR and MASTER_PORT are those of rank 0, and that no firewall is between"
    )]
    Connect {
        /// The rank that tried.
        rank: usize,
        /// What it tried to reach.
        target: String,
        /// Where.
        address: String,
        /// How long.
        waited: Duration,
        /// What the last attempt met.
        last: String,
    },
    /// The other side answered and will not have this rank.
    #[error("rank {rank} of {world_size} was refused by {address}: {refusal}")]
    Refused {
        /// The rank that asked.
        rank: usize,
        /// The world size it was started with.
        world_size: usize,
        /// Who refused.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// Some ranks never joined.
    #[error(
        "{} of {world_size} did not join {address} within {waited:.1?}; check that they were started and read their \
         logs, or raise the limit with GroupOptions::with_connect_timeout",
        Ranks(missing)
    )]
    MissingRanks {
        /// The ranks that are missing.
        missing: Vec<usize>,
        /// The number of ranks that were expected.
        world_size: usize,
        /// Where they were expected.
        address: String,
        /// For how long.
        waited: Duration,
    },
    /// A request to the rendezvous store failed.
    #[error(
        "the rendezvous store could not {request} `{key}`: {reason}; rank 0 serves the store, read its log"
    )]
    Store {
        /// `set`, `get`, `add` or `wait`.
        request: &'static str,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
    /// A collective failed, and with it the group: every later call returns the same `failure` at once.
    #[error("{op} #{sequence} failed on rank {rank} of {world_size} after {elapsed:.1?}: {failure}")]
    Collective {
        /// The collective that was called.
        op: OpKind,
        /// Its place in the order of collectives of the group, from 1.
        sequence: u64,
        /// The rank that reports.
        rank: usize,
        /// The size of its group.
        world_size: usize,
        /// Time from the start of the call to the failure, zero if the group had failed before.
        elapsed: Duration,
        /// The cause, the same on every rank.
        failure: Failure,
    },
    /// A buffer whose size does not fit the call.
    #[error("{op}: the {buffer} buffer has {found} bytes, expected {expected}")]
    BufferLength {
        /// The collective.
        op: OpKind,
        /// Which buffer.
        buffer: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: usize,
    },
    /// A root outside the group.
    #[error("{op}: root {root} is not a rank of a group of {world_size}; ranks count from 0")]
    Root {
        /// The collective.
        op: OpKind,
        /// The root that was given.
        root: usize,
        /// The size of the group.
        world_size: usize,
    },
    /// A reduction that is not defined for the type.
    #[error(
        "{op} of {dtype} is not defined; reduce integers with sum and divide, or convert to a float type"
    )]
    UnsupportedReduction {
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// A gathered value that is too large to be meant.
    #[error(
        "all_gather_bytes: the ranks' values pad to {bytes} bytes, the limit is {limit}; gather them in parts"
    )]
    GatherTooLarge {
        /// The bytes that the gathered values would take.
        bytes: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A thread for asynchronous collectives could not be started or died.
    #[error("the communication thread of the group is gone: {reason}; the group must be made anew")]
    CommunicationThread {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// The cause that ended the group, if this error is one of a collective.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Collective { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

/// What ended a group. It travels to the other ranks, so that all of them report the same cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// A rank's connection ended without a goodbye.
    #[error("rank {rank} is gone ({detail}): it crashed, was killed, or its machine is down; read its log")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// What the socket said.
        detail: String,
    },
    /// A rank dropped its group while others went on.
    #[error(
        "rank {rank} has left the group; every rank must make the same collective calls, in the same order"
    )]
    PeerLeft {
        /// The rank that left.
        rank: usize,
    },
    /// Not all ranks arrived in time.
    #[error(
        "{} did not arrive within {limit:.1?}{}; look there for a rank that waits, is stopped or took another path, \
         or raise the limit with GroupOptions::with_timeout",
        Ranks(missing),
        LastSeen(last)
    )]
    Deadline {
        /// The ranks that did not arrive, or did not finish.
        missing: Vec<usize>,
        /// For each of them, the last collective in which it was seen.
        last: Vec<Option<Signature>>,
        /// The limit that passed.
        limit: Duration,
    },
    /// Two ranks called different collectives.
    #[error(
        "rank {rank} called {call} while rank {peer} called {peer_call}; every rank must make the same collective \
         calls, in the same order and with the same sizes"
    )]
    Mismatch {
        /// The rank that noticed.
        rank: usize,
        /// What it called.
        call: Signature,
        /// The rank it differs from.
        peer: usize,
        /// What that rank called.
        peer_call: Signature,
    },
    /// A rank ended the group on purpose.
    #[error("rank {rank} ended the group: {reason}")]
    Aborted {
        /// The rank that ended it.
        rank: usize,
        /// Its words.
        reason: String,
    },
    /// Bytes that are not of this protocol.
    #[error(
        "rank {rank} sent bytes that are no collective of this group ({detail}); all ranks must run one version"
    )]
    Protocol {
        /// The rank whose bytes they are.
        rank: usize,
        /// What is wrong with them.
        detail: String,
    },
    /// The operating system refused something that has nothing to do with a peer.
    #[error("rank {rank} could not {action}: {detail}")]
    System {
        /// The rank it happened on.
        rank: usize,
        /// What was tried.
        action: String,
        /// The operating system's reason.
        detail: String,
    },
}

/// Ranks for a sentence: `rank 2`, or `ranks 2, 3`.
struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if names.len() == 1 { "rank" } else { "ranks" }, names.join(", "))
    }
}

/// Where the missing ranks were last seen, empty when they never were.
struct LastSeen<'a>(&'a [Option<Signature>]);

impl fmt::Display for LastSeen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen: Vec<String> = self.0.iter().flatten().map(ToString::to_string).collect();
        if seen.is_empty() { Ok(()) } else { write!(f, " (last seen in {})", seen.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_with_address_and_time() {
        let error = Error::MissingRanks {
            missing: vec![2, 3],
            world_size: 4,
            address: "10.0.0.1:29500".into(),
            waited: Duration::from_secs(300),
        };
        let text = error.to_string();
        assert!(text.starts_with("ranks 2, 3 of 4 did not join 10.0.0.1:29500 within 300.0s"), "{text}");
    }

    #[test]
    fn a_failure_survives_the_wire_format() {
        let failure =
            Failure::Deadline { missing: vec![1], last: vec![None], limit: Duration::from_millis(1500) };
        let json = serde_json::to_vec(&failure).unwrap();
        assert_eq!(serde_json::from_slice::<Failure>(&json).unwrap(), failure);
        assert!(failure.to_string().starts_with("rank 1 did not arrive within 1.5s"), "{failure}");
    }
}
