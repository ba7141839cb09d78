//! `burnrun`: starts the ranks of a training program on this machine and ends them together.

use burn_nccl::launch::{LaunchConfig, LaunchError, NprocPerNode, Outcome, RankOutput, run};
use clap::Parser;
use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// Start copies of a program as the ranks of one job, with the environment that torchrun would give them.
///
/// The exit code is 0 when all ranks succeed, else that of the rank that failed first, or 128 + N when signal N ended
/// that rank or burnrun itself; 1 when the job cannot be started, 2 when the options are wrong.
#[derive(Parser)]
#[command(
    version,
    override_usage = "burnrun [OPTIONS] --nproc-per-node <N|auto> -- <PROGRAM> [ARGUMENTS]..."
)]
struct Options {
    /// Ranks on this machine; auto takes one per NVIDIA GPU, or one per core where there is no GPU
    #[arg(long, value_name = "N|auto")]
    nproc_per_node: NprocPerNode,

    /// Host name or address at which rank 0 is reached
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    master_addr: String,

    /// Port of the rendezvous [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    master_port: Option<u16>,

    /// Also write each rank's output to DIR/rank-N.log
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix")]
    log_dir: Option<PathBuf>,

    /// Time between asking the ranks to end and killing them
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace_seconds: u32,

    /// Let the ranks write straight to the terminal instead of line by line with their number
    #[arg(long)]
    no_prefix: bool,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let (last_words, code) = match launch(Options::parse()) {
        // The ranks' exit codes and 128 + signal all fit; anything else is a failure.
        Ok(outcome) => (outcome.to_string(), u8::try_from(outcome.exit_code()).unwrap_or(1)),
        Err(error) => (format!("error: {error}\n"), 1),
    };
    // Not eprint!, which would panic, and change the exit code, where nobody reads stderr any more.
    let _ = io::stderr().write_all(last_words.as_bytes());
    ExitCode::from(code)
}

fn launch(options: Options) -> Result<Outcome, LaunchError> {
    let mut command = options.command.into_iter();
    // clap has refused an empty command.
    let program = command.next().unwrap_or_default();
    let mut config = LaunchConfig::new(program, options.nproc_per_node.resolve());
    config.args = command.collect();
    config.master_addr = options.master_addr;
    config.master_port = options.master_port;
    config.log_dir = options.log_dir;
    config.grace = Duration::from_secs(options.grace_seconds.into());
    if options.no_prefix {
        config.rank_zero_output = RankOutput::Inherit;
        config.other_output = RankOutput::Inherit;
    }
    run(&config)
}
