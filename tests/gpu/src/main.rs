//! `gpu-check`: what only a GPU can show, one check a run. `tests/gpu/check.sh` runs them all.

mod checks;
mod device;
mod outcome;
mod parameters;
mod ranks;
mod small_net;
mod training;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use self::checks::{Check, Role};
use self::device::Kind;

/// Runs one check and prints one JSON object: `check`, `device`, `result` (`passed`, `skipped` or `failed`), `why`, `seconds` and
/// `figures`. The exit code is 1 for a check that failed.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Options {
    /// Prints each check with the seconds that it may take, and runs none.
    #[arg(long)]
    list: bool,
    /// Where to compute. On the CPU the figures mean nothing: it shows only that the checks work.
    #[arg(long, default_value = "cuda")]
    device: Kind,
    /// The network of the checks that train.
    #[arg(long, default_value = "resnet50")]
    model: burn_nccl_models::Depth,
    /// Images of one rank in one step.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Height and width of an image in pixels.
    #[arg(long, default_value_t = 224)]
    image_size: usize,
    /// Steps of each measurement.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Steps of the soak, which trains a small network.
    #[arg(long, default_value_t = 1000)]
    soak_steps: usize,
    /// Rounds of the ordering checks.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Rows and columns of their matrices: a power of two.
    #[arg(long, default_value_t = 4096)]
    matrix: usize,
    /// The check.
    #[arg(required_unless_present = "list")]
    check: Option<Check>,
    /// What a process that a check has started is in it.
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Where such a process writes what it found.
    #[arg(long, hide = true)]
    report: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match (options.check, options.role) {
        (Some(check), Some(role)) => check.play(role, &options),
        (Some(check), None) => check.run(&options),
        (None, _) => {
            Check::ALL.iter().for_each(|check| println!("{check} {}", check.limit_seconds()));
            ExitCode::SUCCESS
        }
    }
}
