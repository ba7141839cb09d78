//! What happens in one run: all of it comes from a seed.

use std::path::PathBuf;

use burn_nccl::transport::TransportKind;
use burn_nccl_tests::faulty_job::{FaultyJob, Manner, Moment, Random, RankFault};

/// Long enough that a busy machine does not miss it by itself, short enough that hundreds of runs may wait for it.
const TIMEOUT_MS: u64 = 2000;
const CONNECT_TIMEOUT_MS: u64 = 4000;
/// A delay that no deadline sees, and one that passes every deadline.
const SHORT_MS: u64 = 40;
const LONG_MS: u64 = TIMEOUT_MS + 1500;
/// The stream of random choices that are made here; operations have those above.
const STREAM: u64 = 0;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) job: FaultyJob,
    pub(super) fault: Fault,
    /// Where ranks leave their flight records.
    pub(super) records: Option<PathBuf>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// A rank fails.
    Rank(RankFault, Afterwards),
    /// A connection fails.
    Wire(WireFault),
}

/// What the harness does with a rank that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// Wakes it after this many milliseconds, before any deadline.
    Continue(u64),
    /// Wakes it when all others have ended.
    ContinueLate,
    /// Kills it when all others have ended.
    Kill,
}

/// A fault on one connection of the rank `victim`, which reaches the job through the proxy.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireFault {
    pub(super) victim: usize,
    /// The rank at the other end, a lower one.
    pub(super) peer: usize,
    pub(super) connection: Connection,
    pub(super) direction: Direction,
    /// The byte of the stream, handshake included, at which it happens.
    pub(super) offset: u64,
    pub(super) kind: WireKind,
}

/// Which of the connections between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    /// That to the rendezvous of rank 0.
    Store,
    /// That of the control frames, the first to the peer's own port.
    Control,
    /// That of the data, the second.
    Data,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    FromVictim,
    ToVictim,
}

/// What happens to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireKind {
    /// The connection is cut.
    Cut,
    /// Bits of a byte are flipped.
    Corrupt(u8),
    /// This many bytes are lost.
    Drop(usize),
    /// Up to this many bytes come twice.
    Duplicate(usize),
    /// Up to this many bytes change places with those that follow.
    Reorder(usize),
    /// Nothing passes for this many milliseconds.
    Stall(u64),
}

impl Plan {
    /// The run of this seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, STREAM);
        let world_size = 2 + random.below(3) as usize;
        let operations = 8 + random.below(24);
        let fault = match random.below(100) {
            0..2 => Fault::None,
            2..52 => rank_fault(&mut random, world_size, operations),
            _ => Fault::Wire(wire_fault(&mut random, world_size)),
        };
        let job = FaultyJob {
            seed,
            world_size,
            operations,
            transport: match fault {
                // Shared memory has no connection for data.
                Fault::Wire(WireFault { connection: Connection::Data, .. }) => TransportKind::Tcp,
                _ => random.one_of(&[TransportKind::Tcp, TransportKind::SharedMemory]),
            },
            timeout_ms: TIMEOUT_MS,
            connect_timeout_ms: CONNECT_TIMEOUT_MS,
            check: random.percent(50),
            checksums: matches!(fault, Fault::Wire(_)) && random.percent(80),
            fault: match fault {
                Fault::Rank(fault, _) => Some(fault),
                Fault::None | Fault::Wire(_) => None,
            },
        };
        Self { job, fault, records: None }
    }
}

fn rank_fault(random: &mut Random, world_size: usize, operations: u64) -> Fault {
    let rank = random.below(world_size as u64) as usize;
    let manner = match random.below(100) {
        0..45 => Manner::Kill,
        45..65 => Manner::Stop,
        65..75 => Manner::Exit,
        75..85 => Manner::Panic,
        85..95 => Manner::Delay(1 + random.below(SHORT_MS)),
        _ => Manner::Delay(LONG_MS),
    };
    let moment = match (manner, random.below(100)) {
        // A delay of a whole deadline in the rendezvous is within the limit of the rendezvous.
        (Manner::Delay(_), _) | (_, 20..50) => Moment::Before(random.below(operations)),
        (_, 0..20) => Moment::AfterStart(random.below(30_000)),
        _ => Moment::During(random.below(operations), random.below(1500)),
    };
    let afterwards = match random.below(100) {
        0..40 => Afterwards::Continue(1 + random.below(SHORT_MS)),
        40..70 => Afterwards::ContinueLate,
        _ => Afterwards::Kill,
    };
    Fault::Rank(RankFault { rank, manner, moment }, afterwards)
}

fn wire_fault(random: &mut Random, world_size: usize) -> WireFault {
    let victim = 1 + random.below(world_size as u64 - 1) as usize;
    let (connection, peer, bits) = match random.below(100) {
        0..8 => (Connection::Store, 0, 8),
        8..25 => (Connection::Control, random.below(victim as u64) as usize, 8),
        _ => (Connection::Data, random.below(victim as u64) as usize, 20),
    };
    let length = 1 + random.magnitude(12) as usize;
    let kind = match random.below(100) {
        0..25 => WireKind::Cut,
        25..60 => WireKind::Corrupt(1 + random.below(255) as u8),
        60..68 => WireKind::Drop(length),
        68..76 => WireKind::Duplicate(length),
        76..84 => WireKind::Reorder(length),
        84..95 => WireKind::Stall(1 + random.below(SHORT_MS)),
        _ => WireKind::Stall(LONG_MS),
    };
    let direction = random.one_of(&[Direction::FromVictim, Direction::ToVictim]);
    WireFault { victim, peer, connection, direction, offset: random.magnitude(bits), kind }
}

impl Fault {
    /// Its name in the tally.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::None => "no fault",
            Self::Rank(fault, afterwards) => match (fault.manner, afterwards) {
                (Manner::Kill, _) => "rank killed",
                (Manner::Exit, _) => "rank exits",
                (Manner::Panic, _) => "rank panics",
                (Manner::Delay(LONG_MS), _) => "rank late, past the deadline",
                (Manner::Delay(_), _) => "rank late, within the deadline",
                (Manner::Stop, Afterwards::Continue(_)) => "rank stopped for a moment",
                (Manner::Stop, Afterwards::ContinueLate) => "rank stopped, woken too late",
                (Manner::Stop, Afterwards::Kill) => "rank stopped, then killed",
            },
            Self::Wire(fault) => match fault.kind {
                WireKind::Cut => "connection cut",
                WireKind::Corrupt(_) => "bytes corrupted",
                WireKind::Drop(_) => "bytes lost",
                WireKind::Duplicate(_) => "bytes twice",
                WireKind::Reorder(_) => "bytes in another order",
                WireKind::Stall(LONG_MS) => "bytes late, past the deadline",
                WireKind::Stall(_) => "bytes late, within the deadline",
            },
        }
    }

    /// Whether every rank must end well in spite of it.
    pub(super) fn is_harmless(&self) -> bool {
        match self {
            Self::None => true,
            Self::Rank(fault, afterwards) => match fault.manner {
                Manner::Delay(milliseconds) => milliseconds <= SHORT_MS,
                Manner::Stop => matches!(afterwards, Afterwards::Continue(_)),
                Manner::Kill | Manner::Exit | Manner::Panic => false,
            },
            Self::Wire(fault) => matches!(fault.kind, WireKind::Stall(ms) if ms <= SHORT_MS),
        }
    }

    /// The ranks of which one must be named: the faulty one, or those at both ends of the faulty connection.
    pub(super) fn suspects(&self) -> Vec<usize> {
        match self {
            Self::None => Vec::new(),
            Self::Rank(fault, _) => vec![fault.rank],
            Self::Wire(fault) => vec![fault.victim, fault.peer],
        }
    }
}
