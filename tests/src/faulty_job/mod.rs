//! A job that runs random collectives, checks their results and meets one fault: what a rank of the fault harness does.
//!
//! Below tensors and small on purpose: the harness starts thousands of these processes.

mod operation;
mod random;
mod resources;

use std::time::{Duration, Instant};

use burn_nccl::transport::TransportKind;
use burn_nccl::{DType, Environment, Error, Failure, GroupOptions, ProcessGroup};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::fault::{FAULT_EXIT_CODE, FAULT_MESSAGE};
pub use operation::Operation;
pub use random::Random;
pub use resources::Resources;

/// The job, the same on all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultyJob {
    /// What all choices come from.
    pub seed: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of operations.
    pub operations: u64,
    /// What carries the operations.
    pub transport: TransportKind,
    /// The limit of one operation in milliseconds.
    pub timeout_ms: u64,
    /// The limit of the rendezvous in milliseconds.
    pub connect_timeout_ms: u64,
    /// Whether operations are compared before data moves.
    pub check: bool,
    /// Whether payloads carry checksums.
    pub checksums: bool,
    /// The fault, if it is one of a rank.
    pub fault: Option<RankFault>,
}

/// A rank that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFault {
    /// The rank.
    pub rank: usize,
    /// How.
    pub manner: Manner,
    /// When.
    pub moment: Moment,
}

/// How a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// `SIGKILL`.
    Kill,
    /// `SIGSTOP`; what becomes of it then is the harness's choice.
    Stop,
    /// `exit` without leaving the group.
    Exit,
    /// A panic.
    Panic,
    /// It is late by this many milliseconds.
    Delay(u64),
}

/// When a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// This long after its start, in microseconds: mostly in the rendezvous.
    AfterStart(u64),
    /// Before this operation.
    Before(u64),
    /// This many microseconds after the start of this operation.
    During(u64, u64),
}

/// What a rank says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// Operations that gave the right result.
    pub right: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What the process held before it joined and after it left.
    pub before: Resources,
    /// As `before`.
    pub after: Resources,
}

/// How a rank ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// All operations gave the right result.
    Right,
    /// This operation returned without an error and gave a wrong result.
    Wrong(String),
    /// An error.
    Failed {
        /// Its text.
        text: String,
        /// What ended the group, if that is what happened.
        failure: Option<Failure>,
        /// How long the call took that failed, in milliseconds.
        milliseconds: u64,
    },
}

impl FaultyJob {
    /// As the only argument of the program.
    pub fn to_argument(&self) -> String {
        serde_json::to_string(self).expect("a job is plain data")
    }

    /// Plays one rank, whose place the environment tells.
    pub fn play(&self) -> End {
        let before = Resources::now();
        let mut right = 0;
        let start = Instant::now();
        let outcome = match self.run(&mut right) {
            Ok(outcome) => outcome,
            Err((error, called)) => Outcome::Failed {
                text: error.to_string(),
                failure: error.failure().cloned(),
                milliseconds: called.unwrap_or(start).elapsed().as_millis() as u64,
            },
        };
        End { right, outcome, before, after: Resources::settled(&before) }
    }

    fn run(&self, right: &mut u64) -> Result<Outcome, (Error, Option<Instant>)> {
        let environment = Environment::read().map_err(|error| (error, None))?;
        let environment = environment.expect("the harness sets the environment of a launcher");
        let fault = self.fault.filter(|fault| fault.rank == environment.rank);
        if let Some(RankFault { manner, moment: Moment::AfterStart(microseconds), .. }) = fault {
            manner.commit_in(Duration::from_micros(microseconds));
        }
        let group = ProcessGroup::connect(&environment, self.options()).map_err(|error| (error, None))?;
        for index in 0..self.operations {
            match fault {
                Some(RankFault { manner, moment: Moment::Before(at), .. }) if at == index => manner.commit(),
                Some(RankFault { manner, moment: Moment::During(at, microseconds), .. }) if at == index => {
                    manner.commit_in(Duration::from_micros(microseconds));
                }
                _ => {}
            }
            let called = Instant::now();
            let operation = Operation::new(self.seed, index, self.world_size);
            if let Some(wrong) = operation.run(&group).map_err(|error| (error, Some(called)))? {
                return Ok(Outcome::Wrong(format!("operation {index}, {operation:?}: {wrong}")));
            }
            *right += 1;
        }
        Ok(Outcome::Right)
    }

    fn options(&self) -> GroupOptions {
        GroupOptions::default()
            .with_timeout(Duration::from_millis(self.timeout_ms))
            .with_connect_timeout(Duration::from_millis(self.connect_timeout_ms))
            .with_check(self.check)
            .with_checksums(self.checksums)
            .with_transport(self.transport)
    }
}

impl Manner {
    /// Fails, here and now.
    fn commit(self) {
        match self {
            Self::Kill => signal(Signal::SIGKILL),
            Self::Stop => signal(Signal::SIGSTOP),
            Self::Exit => std::process::exit(FAULT_EXIT_CODE),
            Self::Panic => panic!("{FAULT_MESSAGE}"),
            Self::Delay(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
        }
    }

    /// Fails soon, whatever the rank does then. A delay and a panic are of the calling thread and come at once.
    fn commit_in(self, delay: Duration) {
        match self {
            Self::Delay(_) | Self::Panic => self.commit(),
            Self::Kill | Self::Stop | Self::Exit => {
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    self.commit();
                });
            }
        }
    }
}

/// Sends a signal to this whole process.
fn signal(signal: Signal) {
    kill(Pid::this(), signal).expect("a process may signal itself");
}

/// The type that stands for bytes.
pub(crate) const BYTES: DType = DType::U8;
