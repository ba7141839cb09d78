//! What ends a group, the same on every rank.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    error::class_of,
    transport::{OpKind, Signature},
};

/// What ended a group. It travels to the other ranks, so that all of them report the same cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// A rank's connection ended without a goodbye.
    #[error(
        "rank {rank} is gone ({detail}): it crashed, was killed, or its machine or the network to it is down; read \
         its log"
    )]
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
        "rank {rank} called {} while rank {peer} called {}; every rank must make the same collective \
         calls, in the same order and with the same sizes",
        Called(call, sites.as_ref().and_then(|sites| sites.call.as_deref())),
        Called(peer_call, sites.as_ref().and_then(|sites| sites.peer_call.as_deref()))
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
        /// Where their programs did, once they have been asked.
        sites: Option<Box<CallSites>>,
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
    /// MPI refused something.
    #[error("rank {rank} could not {action} by MPI: {text}{}; read its log and that of mpirun", class_of(*class))]
    Mpi {
        /// The rank it happened on.
        rank: usize,
        /// What was tried.
        action: String,
        /// MPI's error class, 0 where it was not MPI that refused.
        class: i32,
        /// MPI's words.
        text: String,
    },
    /// NCCL refused something, or found that another rank is in trouble.
    #[error(
        "rank {rank} could not {action} by NCCL: error {code} ({text}); run again with NCCL_DEBUG=INFO for its own account"
    )]
    Nccl {
        /// The rank it happened on.
        rank: usize,
        /// What was tried.
        action: String,
        /// NCCL's code.
        code: i32,
        /// NCCL's words.
        text: String,
    },
    /// The CUDA driver refused something, or the GPU has failed.
    #[error(
        "rank {rank} could not {action} on its GPU: CUDA error {code} ({name}); look for Xid lines in the kernel log"
    )]
    Cuda {
        /// The rank it happened on.
        rank: usize,
        /// What was tried.
        action: String,
        /// CUDA's code.
        code: i32,
        /// CUDA's name of it.
        name: String,
    },
    /// All ranks have come to an operation, and NCCL does not end it.
    #[error(
        "NCCL did not end {operation} within {limit:.1?} although all ranks have come to it; run again with NCCL_DEBUG=INFO, \
         and look at the network between the GPUs (NCCL_SOCKET_IFNAME, NCCL_P2P_DISABLE=1) and at their load"
    )]
    Stalled {
        /// The operation.
        operation: String,
        /// The limit that passed.
        limit: Duration,
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

impl Failure {
    /// A mismatch as a transport finds it, before anybody is asked where the calls were made.
    pub(crate) fn mismatch(rank: usize, call: Signature, peer: usize, peer_call: Signature) -> Self {
        Self::Mismatch { rank, call, peer, peer_call, sites: None }
    }
}

/// Where two calls that differ were made: `file:line:column`, and what for; `None` for a rank that has not said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSites {
    /// Of the rank that noticed.
    pub call: Option<String>,
    /// Of the rank it differs from.
    pub peer_call: Option<String>,
}

/// Ranks for a sentence: `rank 2`, or `ranks 2, 3`.
pub(crate) struct Ranks<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", if names.len() == 1 { "rank" } else { "ranks" }, names.join(", "))
    }
}

/// A call, and where it was made if that is known.
struct Called<'a>(&'a Signature, Option<&'a str>);

impl fmt::Display for Called<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(call, place) = self;
        write!(f, "{call}")?;
        if call.kind != OpKind::Barrier {
            write!(f, ", {} elements,", call.bytes / call.dtype.size_bytes() as u64)?;
        }
        place.map_or(Ok(()), |place| write!(f, " at {place}"))
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
    fn a_failure_survives_the_wire_format() {
        let failure =
            Failure::Deadline { missing: vec![1], last: vec![None], limit: Duration::from_millis(1500) };
        let json = serde_json::to_vec(&failure).unwrap();
        assert_eq!(serde_json::from_slice::<Failure>(&json).unwrap(), failure);
        assert!(failure.to_string().starts_with("rank 1 did not arrive within 1.5s"), "{failure}");
    }
}
