use super::{
    outcome::{Outcome, RankEnd},
    secret::{accepts, prove},
};
use crate::rendezvous::Secret;
use serde::{Deserialize, Serialize};

/// Changes with the messages, so that launchers of different versions refuse each other with words.
pub(super) const PROTOCOL: u32 = 2;
pub(super) const MAGIC: &str = "burnrun";

/// What a stranger may send at most, and what an admitted launcher may: the ends of thousands of ranks.
pub(super) const MAX_GREETING_BYTES: usize = 4 << 10;
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The first message of a node's launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) magic: String,
    pub(super) protocol: u32,
    pub(super) node: usize,
    pub(super) nnodes: usize,
    pub(super) nproc: usize,
    pub(super) host: String,
    pub(super) nonce: String,
    /// Whether the launcher has a secret to prove.
    pub(super) secured: bool,
}

/// The answers to a greeting, in this order unless one is a refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Node 0's own proof, and what the other proof is to be about.
    Challenge {
        nonce: String,
        proof: Option<String>,
    },
    Welcome,
    Refused {
        reason: String,
        /// Whether it may be taken when it asks again.
        is_final: bool,
    },
}

/// The second message of a node's launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Proof {
    pub(super) proof: Option<String>,
}

/// Who of the two proves; a proof cannot be sent back as the other's.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Coordinator,
    Agent,
}

impl Side {
    /// The proof of this side for one greeting. It covers the whole greeting, so that nobody can change a node's rank.
    pub(super) fn prove(self, secret: Option<&Secret>, hello: &Hello, nonce: &str) -> Option<String> {
        secret.map(|secret| prove(secret, self.name(), &[&greeting(hello), nonce.as_bytes()]))
    }

    /// Whether this side has proved the secret, or there is none.
    pub(super) fn is_proved(
        self,
        secret: Option<&Secret>,
        hello: &Hello,
        nonce: &str,
        proof: Option<&str>,
    ) -> bool {
        secret.is_none_or(|secret| {
            let parts: [&[u8]; 2] = [&greeting(hello), nonce.as_bytes()];
            proof.is_some_and(|proof| accepts(secret, self.name(), &parts, proof))
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator of burnrun",
            Self::Agent => "agent of burnrun",
        }
    }
}

fn greeting(hello: &Hello) -> Vec<u8> {
    serde_json::to_vec(hello).expect("plain data")
}

/// What node 0 tells the launchers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The coordinator lives.
    Heartbeat,
    /// Something to show to the user.
    Note(String),
    /// Start the ranks.
    Start(Attempt),
    /// End the ranks.
    Stop(Stop),
    /// The job is over.
    Finish(Finish),
}

/// Why and how ranks are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stop {
    /// Another node's rank has failed: let them notice, then end them.
    Failure,
    /// A rank of another node has left to go on later: give these the whole grace to do the same, then end them.
    Leaving,
    /// Another node's launcher got this signal: pass it on.
    Signal(i32),
    /// The user does not want to wait any longer.
    Kill,
}

/// One start of all ranks, as one node is to do it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Attempt {
    /// Restarts before it.
    pub(super) restart: usize,
    pub(super) max_restarts: usize,
    pub(super) run_id: String,
    /// What the ranks' secret comes from.
    pub(super) seed: String,
    pub(super) world_size: usize,
    /// The node's rank with local rank 0.
    pub(super) first_rank: usize,
    pub(super) master_port: u16,
}

/// The end of a job, as every launcher learns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Finish {
    /// Ranks have run.
    Outcome(Outcome),
    /// Not all nodes came.
    Incomplete { missing: Vec<usize>, seconds: f64 },
    /// A node could not start its ranks.
    NotStarted { node: usize, host: String, reason: String },
}

/// What a launcher tells node 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum News {
    /// The launcher lives.
    Heartbeat,
    /// Its ranks run.
    Started { pids: Vec<u32> },
    /// A rank has failed.
    Failed,
    /// A rank has left to go on later, and none has failed.
    Leaving,
    /// The launcher got a signal; `is_cause` unless a rank had failed before.
    Signalled { signal: i32, is_cause: bool },
    /// It got a second one.
    Kill,
    /// All its ranks have ended.
    Ended(NodeEnd),
    /// It cannot start them.
    CannotStart { reason: String },
}

/// How the ranks of a node have ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeEnd {
    pub(super) ends: Vec<RankEnd>,
    /// The node's time when it says so, in seconds since 1970-01-01 UTC.
    pub(super) sent_at: f64,
}

impl NodeEnd {
    /// Puts all times on the clock of who receives this at `received_at`.
    ///
    /// Hosts' clocks differ by seconds where nothing keeps them, more than what is between a failure and its
    /// consequences. The ages of the events do not, and they are off by the time that the message took only.
    pub(super) fn on_clock_of_receiver(mut self, received_at: f64) -> Self {
        let shift = received_at - self.sent_at;
        for end in &mut self.ends {
            end.seen_at += shift;
            if let Some(report) = &mut end.report {
                report.timestamp += shift;
            }
        }
        self
    }
}
