//! Why a rank is not let in.

use std::fmt;

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The first bytes are not of this protocol.
    Stranger,
    /// Another version of the protocol.
    Version {
        /// The version that the refusing side speaks.
        expected: u32,
    },
    /// A machine of the other byte order.
    ByteOrder,
    /// The caller does not know the secret of the job.
    Secret,
    /// The run token of another job.
    Token,
    /// Another world size.
    WorldSize {
        /// The world size of the refusing side.
        expected: u32,
    },
    /// A rank that is not below the world size.
    RankOutOfRange,
    /// The call was meant for another rank than the one that answers.
    WrongRank {
        /// The rank that answers.
        expected: u32,
    },
    /// A rank that has joined already.
    DuplicateRank,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => f.write_str("the first bytes are not of the burn-nccl protocol"),
            Self::Version { expected } => {
                write!(f, "it speaks protocol version {expected}; build all ranks from one version of burn-nccl")
            }
            Self::ByteOrder => f.write_str("its machine has the other byte order; use machines of one kind"),
            Self::Secret => f.write_str(
                "the job's secret differs; give the same BURN_NCCL_SECRET to all ranks of one job, or, if another job \
                 uses this address, each job its own MASTER_PORT",
            ),
            Self::Token => f.write_str(
                "the run token differs, so another job uses this address; give each job its own MASTER_PORT, or the \
                 same BURN_NCCL_RUN_ID, and BURN_NCCL_SECRET where one is set, to all ranks of one job",
            ),
            Self::WorldSize { expected } => {
                write!(f, "its world size is {expected}; start all ranks with the same WORLD_SIZE")
            }
            Self::RankOutOfRange => f.write_str("the rank is not below the world size; ranks count from 0"),
            Self::WrongRank { expected } => {
                write!(f, "rank {expected} answers there, which is not the one that was called; start the job anew")
            }
            Self::DuplicateRank => f.write_str("this rank has joined already; start each rank once"),
        }
    }
}

impl Refusal {
    /// Its number in a verdict and its detail.
    ///
    /// What a callee says only to those who have proven the secret. The others are seen by the caller itself: a
    /// version and a byte order in the greeting, a wrong secret in the bare refusal.
    pub(super) fn encode(self) -> (u8, u32) {
        match self {
            Self::Token => (1, 0),
            Self::WorldSize { expected } => (2, expected),
            Self::RankOutOfRange => (3, 0),
            Self::WrongRank { expected } => (4, expected),
            Self::DuplicateRank => (5, 0),
            Self::Stranger => (6, 0),
            Self::Version { expected } => (7, expected),
            Self::ByteOrder => (8, 0),
            Self::Secret => (9, 0),
        }
    }

    /// Reads what [`encode`](Self::encode) gave.
    pub(super) fn decode(code: u8, detail: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Token,
            2 => Self::WorldSize { expected: detail },
            3 => Self::RankOutOfRange,
            4 => Self::WrongRank { expected: detail },
            5 => Self::DuplicateRank,
            6 => Self::Stranger,
            7 => Self::Version { expected: detail },
            8 => Self::ByteOrder,
            9 => Self::Secret,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_reads_back_as_it_was_sent() {
        for refusal in [
            Refusal::Stranger,
            Refusal::Version { expected: 7 },
            Refusal::ByteOrder,
            Refusal::Secret,
            Refusal::Token,
            Refusal::WorldSize { expected: 8 },
            Refusal::RankOutOfRange,
            Refusal::WrongRank { expected: 3 },
            Refusal::DuplicateRank,
        ] {
            let (code, detail) = refusal.encode();
            assert_eq!(Refusal::decode(code, detail), Some(refusal));
        }
        assert_eq!(Refusal::decode(0, 0), None);
        assert_eq!(Refusal::decode(10, 0), None);
    }
}
