//! The first bytes on every connection: who calls, of which job, and whether the callee will have it.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::resolve::resolve;
use crate::{Error, Result, deadline::Deadline};

/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 64;
/// Bytes of the answer.
const REPLY_BYTES: usize = 16;
/// What the caller sends once it has its answer. Without it, a callee that was busy would take the connections that
/// the caller has given up for live ones.
pub(super) const CONFIRMATION: [u8; 1] = *b"!";

const HELLO_MAGIC: [u8; 8] = *b"BURNNCCL";
const REPLY_MAGIC: [u8; 8] = *b"burnnccl";
const VERSION: u16 = 1;
/// In the machine's own order, so that a machine of the other order is noticed: buffers travel as they lie in memory.
const BYTE_ORDER: [u8; 2] = 0x0102u16.to_ne_bytes();

/// How long one attempt to connect or one answer may take, within the deadline of the whole.
const ATTEMPT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Who a rank is and which job it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// SHA-256 of the run token: of one size, and the token itself stays off the wire.
    token: [u8; 32],
}

impl Identity {
    pub(crate) fn new(rank: usize, world_size: usize, run_id: &str) -> Self {
        Self { rank, world_size, token: Sha256::digest(run_id.as_bytes()).into() }
    }

    /// The identity of a rank of a part of this group; `label` tells the part from every other.
    pub(crate) fn part(&self, label: &str, rank: usize, world_size: usize) -> Self {
        let token = Sha256::new().chain_update(self.token).chain_update(label).finalize().into();
        Self { rank, world_size, token }
    }

    /// A short number that all ranks of the group share.
    pub(crate) fn tag(&self) -> u32 {
        u32::from_le_bytes(self.token[..4].try_into().expect("four bytes"))
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

/// The opening of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) identity: Identity,
    pub(crate) role: Role,
    /// Random, and the same in every attempt of one call.
    nonce: u64,
}

impl Hello {
    /// The opening of a new call, for all of its attempts.
    pub(crate) fn new(identity: Identity, role: Role) -> Self {
        // Each `RandomState` holds keys from the system's random source.
        Self { identity, role, nonce: RandomState::new().build_hasher().finish() }
    }

    /// Whether the two are calls of different processes that both claim to be the same rank.
    pub(super) fn is_rival(&self, other: &Self) -> bool {
        (self.identity.rank, self.role) == (other.identity.rank, other.role) && self.nonce != other.nonce
    }

    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&BYTE_ORDER);
        bytes[12] = Role::ALL.iter().position(|role| *role == self.role).expect("ALL lists every role") as u8;
        bytes[16..20].copy_from_slice(&(self.identity.rank as u32).to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.identity.world_size as u32).to_le_bytes());
        bytes[24..56].copy_from_slice(&self.identity.token);
        bytes[56..64].copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }

    /// Reads a hello and compares it with what the callee, `host`, is part of.
    pub(super) fn check(bytes: &[u8; HELLO_BYTES], host: &Identity) -> Result<Self, Refusal> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes[0..8] != HELLO_MAGIC {
            return Err(Refusal::Stranger);
        }
        if bytes[8..10] != VERSION.to_le_bytes() {
            return Err(Refusal::Version { expected: VERSION.into() });
        }
        if bytes[10..12] != BYTE_ORDER {
            return Err(Refusal::ByteOrder);
        }
        if bytes[24..56] != host.token {
            return Err(Refusal::Token);
        }
        let (rank, world_size) = (number(16) as usize, number(20) as usize);
        if world_size != host.world_size {
            return Err(Refusal::WorldSize { expected: host.world_size as u32 });
        }
        if rank >= world_size {
            return Err(Refusal::RankOutOfRange);
        }
        let role = *Role::ALL.get(bytes[12] as usize).ok_or(Refusal::Stranger)?;
        let nonce = u64::from_le_bytes(bytes[56..64].try_into().expect("eight bytes"));
        Ok(Self { identity: Identity { rank, world_size, token: host.token }, role, nonce })
    }
}

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
    /// The run token of another job.
    Token,
    /// Another world size.
    WorldSize {
        /// The world size of the refusing side.
        expected: u32,
    },
    /// A rank that is not below the world size.
    RankOutOfRange,
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
            Self::Token => f.write_str(
                "the run token differs, so another job uses this address; give each job its own MASTER_PORT, or the \
                 same BURN_NCCL_RUN_ID to all ranks of one job",
            ),
            Self::WorldSize { expected } => {
                write!(f, "its world size is {expected}; start all ranks with the same WORLD_SIZE")
            }
            Self::RankOutOfRange => f.write_str("the rank is not below the world size; ranks count from 0"),
            Self::DuplicateRank => f.write_str("this rank has joined already; start each rank once"),
        }
    }
}

impl Refusal {
    fn encode(refusal: Option<Self>) -> [u8; REPLY_BYTES] {
        let (code, detail) = match refusal {
            None => (0, 0),
            Some(Self::Stranger) => (1, 0),
            Some(Self::Version { expected }) => (2, expected),
            Some(Self::ByteOrder) => (3, 0),
            Some(Self::Token) => (4, 0),
            Some(Self::WorldSize { expected }) => (5, expected),
            Some(Self::RankOutOfRange) => (6, 0),
            Some(Self::DuplicateRank) => (7, 0),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[0..8].copy_from_slice(&REPLY_MAGIC);
        bytes[8] = code;
        bytes[12..16].copy_from_slice(&detail.to_le_bytes());
        bytes
    }

    /// Reads an answer; `None` if the bytes are none.
    fn decode(bytes: &[u8; REPLY_BYTES]) -> Option<Option<Self>> {
        let detail = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes"));
        if bytes[0..8] != REPLY_MAGIC {
            return None;
        }
        match bytes[8] {
            0 => Some(None),
            1 => Some(Some(Self::Stranger)),
            2 => Some(Some(Self::Version { expected: detail })),
            3 => Some(Some(Self::ByteOrder)),
            4 => Some(Some(Self::Token)),
            5 => Some(Some(Self::WorldSize { expected: detail })),
            6 => Some(Some(Self::RankOutOfRange)),
            7 => Some(Some(Self::DuplicateRank)),
            _ => None,
        }
    }

    /// Tells the caller. A fresh connection has room for the few bytes, so this does not block.
    pub(super) fn answer(refusal: Option<Self>, mut stream: &TcpStream) -> io::Result<()> {
        stream.write_all(&Self::encode(refusal))
    }
}

/// Calls `host:port` until it answers, is certain to refuse, or the deadline has passed.
///
/// The callee may start later, and its name may be known later, so both are tried again with growing pauses.
pub(crate) fn call(place: (&str, u16), target: &str, hello: &Hello, deadline: Deadline) -> Result<TcpStream> {
    call_in_attempts(place, target, hello, deadline, ATTEMPT)
}

/// As [`call`], with the longest time for one attempt.
pub(super) fn call_in_attempts(
    (host, port): (&str, u16),
    target: &str,
    hello: &Hello,
    deadline: Deadline,
    limit: Duration,
) -> Result<TcpStream> {
    let mut pause = FIRST_PAUSE;
    let address = join_host_port(host, port);
    loop {
        let last = match resolve(host, port, deadline) {
            Err(error) => format!("the name cannot be resolved ({error})"),
            Ok(candidates) => {
                let mut last = "the name has no address".to_owned();
                for candidate in candidates {
                    match attempt(candidate, hello, deadline.remaining_at_most(limit)) {
                        Ok(stream) => return Ok(stream),
                        Err(Attempt::Refused(refusal)) => {
                            let Identity { rank, world_size, .. } = hello.identity;
                            return Err(Error::Refused { rank, world_size, address, refusal });
                        }
                        Err(Attempt::Again(reason)) => last = reason,
                    }
                }
                last
            }
        };
        if deadline.remaining() <= pause {
            let (rank, target) = (hello.identity.rank, target.to_owned());
            return Err(Error::Connect { rank, target, address, waited: deadline.elapsed(), last });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Attempt {
    Refused(Refusal),
    Again(String),
}

fn attempt(address: SocketAddr, hello: &Hello, limit: Duration) -> Result<TcpStream, Attempt> {
    let again = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Attempt::Again("it closes the connection without an answer".to_owned())
        }
        io::ErrorKind::WouldBlock => {
            Attempt::Again("it accepts the connection but does not answer".to_owned())
        }
        _ => Attempt::Again(error.to_string()),
    };
    let mut stream = TcpStream::connect_timeout(&address, limit).map_err(again)?;
    // A port that nobody listens on can be handed to this very socket, which then talks to itself.
    if stream.local_addr().map_err(again)? == stream.peer_addr().map_err(again)? {
        return Err(Attempt::Again("nobody listens there".to_owned()));
    }
    stream.set_nodelay(true).map_err(again)?;
    stream.set_read_timeout(Some(limit)).map_err(again)?;
    stream.set_write_timeout(Some(limit)).map_err(again)?;
    stream.write_all(&hello.encode()).map_err(again)?;
    let mut reply = [0; REPLY_BYTES];
    stream.read_exact(&mut reply).map_err(again)?;
    match Refusal::decode(&reply) {
        Some(None) => stream.write_all(&CONFIRMATION).map(|()| stream).map_err(again),
        Some(Some(refusal)) => Err(Attempt::Refused(refusal)),
        None => Err(Attempt::Again("what answers there is not burn-nccl".to_owned())),
    }
}

/// `host:port`, with brackets where an IPv6 address needs them.
pub(crate) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: Role = Role::Data;

    fn check(change: impl Fn(&mut Identity, &mut [u8; HELLO_BYTES])) -> Result<Hello, Refusal> {
        let host = Identity::new(0, 4, "job");
        let mut identity = Identity::new(2, 4, "job");
        change(&mut identity, &mut [0; HELLO_BYTES]);
        let mut bytes = Hello::new(identity, ROLE).encode();
        change(&mut identity, &mut bytes);
        Hello::check(&bytes, &host)
    }

    #[test]
    fn a_hello_is_accepted_only_from_a_rank_of_the_same_job() {
        let accepted = check(|_, _| ()).unwrap();
        assert_eq!((accepted.identity.rank, accepted.role), (2, ROLE));
        assert_eq!(check(|_, bytes| bytes[0] = b'G'), Err(Refusal::Stranger));
        assert_eq!(check(|_, bytes| bytes[8] = 9), Err(Refusal::Version { expected: 1 }));
        assert_eq!(check(|_, bytes| bytes[10..12].reverse()), Err(Refusal::ByteOrder));
        assert_eq!(check(|_, bytes| bytes[30] ^= 1), Err(Refusal::Token));
        assert_eq!(check(|identity, _| identity.world_size = 3), Err(Refusal::WorldSize { expected: 4 }));
        assert_eq!(check(|identity, _| identity.rank = 4), Err(Refusal::RankOutOfRange));
        assert_eq!(check(|_, bytes| bytes[12] = 3), Err(Refusal::Stranger));
    }

    #[test]
    fn every_refusal_reads_back_as_it_was_sent() {
        for refusal in [
            None,
            Some(Refusal::Stranger),
            Some(Refusal::Version { expected: 7 }),
            Some(Refusal::ByteOrder),
            Some(Refusal::Token),
            Some(Refusal::WorldSize { expected: 8 }),
            Some(Refusal::RankOutOfRange),
            Some(Refusal::DuplicateRank),
        ] {
            assert_eq!(Refusal::decode(&Refusal::encode(refusal)), Some(refusal));
        }
        assert_eq!(Refusal::decode(b"HTTP/1.1 400 Bad"), None);
    }
}
