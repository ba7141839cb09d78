//! The checks, and what a process is in one.

mod capture;
mod discovery;
mod identity;
mod kill;
mod ordering;
mod overlap;
mod parity;
mod soak;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use burn_nccl::StreamOrdering;
use clap::ValueEnum;

use crate::Options;
use crate::outcome::{Ending, Line};

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// What there is: GPUs, driver, NCCL, and how streams are ordered when nobody says.
    Discovery,
    /// Every tensor collective of a group of one gives back what it got, bit for bit.
    Identity,
    /// Collectives between long kernels and reads, ordered by context events.
    OrderingContextEvents,
    /// The same, ordered by the host.
    OrderingHostFence,
    /// A collective in a graph capture is refused, and works again after it.
    Capture,
    /// The time of a step without data parallelism, with it, and with its overlap; and the order of events.
    Overlap,
    /// Many steps, whose memory stays where it is.
    Soak,
    /// Two ranks take the step that one process takes on the joined batch.
    Parity,
    /// A rank that is killed is named by the other, in time.
    Kill,
}

/// What a process that a check has started is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// One of several ranks.
    Rank,
    /// The one process on the joined batch.
    Joined,
    /// The one process on the batch of rank 0.
    Alone,
}

impl Role {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Joined => "joined",
            Self::Alone => "alone",
        }
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Check {
    /// Every one, the cheap ones first.
    pub(crate) const ALL: [Self; 9] = [
        Self::Discovery,
        Self::Identity,
        Self::OrderingContextEvents,
        Self::OrderingHostFence,
        Self::Capture,
        Self::Parity,
        Self::Kill,
        Self::Overlap,
        Self::Soak,
    ];

    /// Its name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Discovery => "discovery",
            Self::Identity => "identity",
            Self::OrderingContextEvents => "ordering-context-events",
            Self::OrderingHostFence => "ordering-host-fence",
            Self::Capture => "capture",
            Self::Overlap => "overlap",
            Self::Soak => "soak",
            Self::Parity => "parity",
            Self::Kill => "kill",
        }
    }

    /// What it may take on a GPU, kernels that are compiled and chosen for the first time included.
    pub(crate) const fn limit_seconds(self) -> u64 {
        match self {
            Self::Discovery | Self::Identity | Self::Capture => 60,
            Self::OrderingContextEvents | Self::OrderingHostFence | Self::Kill => 60,
            Self::Parity => 120,
            Self::Overlap | Self::Soak => 150,
        }
    }

    /// Runs it and prints its line.
    pub(crate) fn run(self, options: &Options) -> ExitCode {
        let start = Instant::now();
        let ending = guarded(|| self.body(options));
        let line = Line::new(self.name(), options.device.name(), ending, start.elapsed().as_secs_f64());
        println!("{}", serde_json::to_string(&line).expect("a line is plain data"));
        if line.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn body(self, options: &Options) -> anyhow::Result<Ending> {
        if let Some(why) = options.device.obstacle() {
            return Ending::skipped(why);
        }
        match self {
            Self::Discovery => discovery::run(options),
            Self::Identity => identity::run(options),
            Self::OrderingContextEvents => ordering::run(StreamOrdering::ContextEvents, options),
            Self::OrderingHostFence => ordering::run(StreamOrdering::HostFence, options),
            Self::Capture => capture::run(options),
            Self::Overlap => overlap::run(options),
            Self::Soak => soak::run(options),
            Self::Parity => parity::run(options),
            Self::Kill => kill::run(options),
        }
    }

    /// Does what a process that the check has started is for.
    pub(crate) fn play(self, role: Role, options: &Options) -> ExitCode {
        let end = guarded(|| match self {
            Self::Parity => parity::play(role, options),
            Self::Kill => kill::play(options),
            _ => anyhow::bail!("{self} starts no processes"),
        });
        match end {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

/// A panic of Burn, which is how it tells of a device's errors, is a failure like any other.
fn guarded<T>(body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        anyhow::bail!("it panicked: {text}")
    })
}
