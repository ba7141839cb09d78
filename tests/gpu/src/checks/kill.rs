//! The death of a rank.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use burn::tensor::{Tensor, TensorData};
use burn_nccl::{Failure, ProcessGroup, ReduceOp, StreamOrdering, functions};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Check, Role};
use crate::Options;
use crate::outcome::Ending;
use crate::ranks::{Process, arguments, device_index, free_port, rank_environment, two_ranks};

/// The rank that dies.
const VICTIM: usize = 1;
/// Collectives before it does.
const ROUNDS: usize = 5;
const ELEMENTS: usize = 1 << 20;
/// Until the other must know, and then until it must have ended. A fifth of the deadline of a collective.
const PATIENCE: Duration = Duration::from_secs(10);
/// For both to start.
const START: Duration = Duration::from_secs(40);

/// What a rank saw at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    /// Seconds since 1970.
    at: f64,
    failure: Option<Failure>,
    text: String,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let variables = match two_ranks(options)? {
        Ok(variables) => variables,
        Err(why) => return Ending::skipped(why),
    };
    let (folder, port) = (tempfile::tempdir()?, free_port()?);
    let report = |rank: usize| folder.path().join(rank.to_string());
    let start = |rank| {
        let mut env = rank_environment(rank, port);
        env.extend(variables.iter().cloned());
        Process::start(&arguments(options, Check::Kill, Role::Rank, &report(rank)), &env)
    };
    let (mut survivor, mut victim) = (start(0)?, start(VICTIM)?);
    let status = victim.wait(START)?;
    ensure!(status.signal() == Some(Signal::SIGKILL as i32), "rank {VICTIM} was to be killed: {status}");
    let status = survivor.wait(2 * PATIENCE).context("rank 0 after the death of the other")?;
    ensure!(status.success(), "rank 0 ended with {status}");
    let (died, knew) = (read(&report(VICTIM))?, read(&report(0))?);
    let seconds = knew.at - died.at;
    ensure!(
        matches!(knew.failure, Some(Failure::PeerLost { rank: VICTIM, .. })),
        "rank 0 says something else than that rank {VICTIM} is gone: {}",
        knew.text
    );
    ensure!(seconds < PATIENCE.as_secs_f64(), "rank 0 knew after {seconds:.1} s only");
    Ok(Ending::Passed(json!({ "seconds_until_named": seconds, "error": knew.text })))
}

/// Reduces until the other rank dies, or dies.
pub(crate) fn play(options: &Options) -> anyhow::Result<()> {
    let report = options.report.as_deref().context("a role has a report")?;
    let group = options.device.group(StreamOrdering::Auto)?;
    let device = options.device.device(device_index(options, group.local_rank()));
    let one = |round: usize| -> burn_nccl::Result<()> {
        let values = TensorData::new(vec![round as f32; ELEMENTS], [ELEMENTS]);
        let tensor = Tensor::<1>::from_data(values, &device);
        let sum = functions::all_reduce(tensor, ReduceOp::Sum, &group)?;
        // Burn waits for the device only where the values are looked at.
        drop(sum.into_data().try_to_vec::<f32>());
        Ok(())
    };
    for round in 0..ROUNDS {
        one(round)?;
    }
    if group.rank() == VICTIM {
        write(report, &Seen { at: now()?, failure: None, text: String::new() })?;
        raise(Signal::SIGKILL)?;
    }
    survive(one, &group, report)
}

fn survive(
    one: impl Fn(usize) -> burn_nccl::Result<()>,
    group: &ProcessGroup,
    report: &Path,
) -> anyhow::Result<()> {
    // A collective that the GPU had already may end with anything; it is the next one that says so.
    for round in 0..ROUNDS {
        if let Err(error) = one(round) {
            let failure = error.failure().cloned();
            return write(report, &Seen { at: now()?, failure, text: error.to_string() });
        }
    }
    bail!("rank {} goes on alone", group.rank())
}

fn now() -> anyhow::Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

fn write(path: &Path, seen: &Seen) -> anyhow::Result<()> {
    Ok(fs::write(path, serde_json::to_vec(seen)?)?)
}

fn read(path: &Path) -> anyhow::Result<Seen> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(serde_json::from_slice(&bytes)?)
}
