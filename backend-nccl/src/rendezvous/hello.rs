//! Who calls, whom, and what for: what a caller claims at the start of a connection.

use sha2::{Digest, Sha256};

use super::challenge::{Secret, nonce};
use super::refusal::Refusal;
use crate::Result;

/// Bytes of what a caller claims to be.
pub(super) const CLAIM_BYTES: usize = 56;

/// Who a rank is and which job it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// SHA-256 of the run token: of one size, and the token itself stays off the wire.
    token: [u8; 32],
    pub(super) secret: Secret,
    /// Whether the secret was given and not derived from the run token.
    is_secret: bool,
}

impl Identity {
    /// A rank of the run that has this token. Without a secret the run token takes its place.
    pub(crate) fn new(rank: usize, world_size: usize, run_id: &str, secret: Option<Secret>) -> Self {
        Self {
            rank,
            world_size,
            token: Sha256::digest(run_id.as_bytes()).into(),
            secret: secret.unwrap_or_else(|| Secret::derive(run_id)),
            is_secret: secret.is_some(),
        }
    }

    /// The identity of a rank of a part of this group; `label` tells the part from every other.
    pub(crate) fn part(&self, label: &str, rank: usize, world_size: usize) -> Self {
        let token = Sha256::new().chain_update(self.token).chain_update(label).finalize().into();
        Self { rank, world_size, token, ..*self }
    }

    /// A short number that all ranks of the group share.
    pub(crate) fn tag(&self) -> u32 {
        u32::from_le_bytes(self.token[..4].try_into().expect("four bytes"))
    }

    /// Whether strangers can be kept out: the ranks have a secret that no run token gives away.
    pub(super) fn has_secret(&self) -> bool {
        self.is_secret
    }

    /// What a bare refusal means to this rank. The callee cannot know: to it the caller is a stranger.
    pub(super) fn bare_refusal(&self) -> Refusal {
        if self.is_secret { Refusal::Secret } else { Refusal::Token }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Store,
    Data,
    Control,
}

impl Role {
    const ALL: [Self; 3] = [Self::Store, Self::Data, Self::Control];
}

/// Who calls, whom, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) identity: Identity,
    pub(crate) role: Role,
    /// The rank that is called.
    to: usize,
    /// Random, and the same in every attempt of one call.
    call: [u8; 8],
}

impl Hello {
    /// The opening of a new call to rank `to`, for all of its attempts.
    pub(crate) fn new(identity: Identity, role: Role, to: usize) -> Result<Self> {
        let call = *nonce()?.first_chunk().expect("a nonce is longer");
        Ok(Self { identity, role, to, call })
    }

    /// Whether the two are calls of different processes that both claim to be the same rank.
    pub(super) fn is_rival(&self, other: &Self) -> bool {
        (self.identity.rank, self.role) == (other.identity.rank, other.role) && self.call != other.call
    }

    pub(super) fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[0] = Role::ALL.iter().position(|role| *role == self.role).expect("ALL lists every role") as u8;
        for (at, number) in [(4, self.identity.rank), (8, self.identity.world_size), (12, self.to)] {
            bytes[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.call);
        bytes[24..56].copy_from_slice(&self.identity.token);
        bytes
    }

    /// Reads a claim that is proven, and compares it with what the callee, `host`, is part of.
    pub(super) fn check(claim: &[u8; CLAIM_BYTES], host: &Identity) -> Result<Self, Refusal> {
        let number = |at: usize| u32::from_le_bytes(claim[at..at + 4].try_into().expect("four bytes"));
        if claim[24..56] != host.token {
            return Err(Refusal::Token);
        }
        let (rank, world_size, to) = (number(4) as usize, number(8) as usize, number(12) as usize);
        if world_size != host.world_size {
            return Err(Refusal::WorldSize { expected: host.world_size as u32 });
        }
        if rank >= world_size {
            return Err(Refusal::RankOutOfRange);
        }
        if to != host.rank {
            return Err(Refusal::WrongRank { expected: host.rank as u32 });
        }
        let role = *Role::ALL.get(claim[0] as usize).ok_or(Refusal::Stranger)?;
        let call = claim[16..24].try_into().expect("eight bytes");
        Ok(Self { identity: Identity { rank, ..*host }, role, to, call })
    }
}
