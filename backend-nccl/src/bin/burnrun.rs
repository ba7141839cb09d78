//! `burnrun`: starts the ranks of a training program on one node or several, and ends and restarts them together.

use burn_nccl::launch::{
    LaunchConfig, LaunchError, NprocPerNode, Outcome, RankOutput, run, secret_from_environment,
    secret_from_file,
};
use clap::{CommandFactory, Parser, error::ErrorKind};
use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// Start copies of a program as the ranks of one job, on this node or on several, with the environment that torchrun would
/// give them.
///
/// On several nodes burnrun is started on each with the same --nnodes, --master-addr and --master-port and its own
/// --node-rank. When a rank fails, or a node is lost, all ranks on all nodes are stopped; with --max-restarts they are
/// started again, and it is up to the program to go on from its last checkpoint.
///
/// SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on to the ranks of all nodes, which have --grace-seconds to end; a second
/// signal, a second or more after the first, kills them. SIGUSR1 and SIGUSR2 are passed on to the ranks of this node.
///
/// The exit code is the same on all nodes: 0 when all ranks succeed, else that of the rank that failed first, or 128 + N
/// when signal N ended that rank or burnrun itself; 75 when all ranks left with 75, or the first to end did and the others
/// ended because of it, by which a rank says that it was asked to stop and can go on later; 1 when the job cannot be started or a node is lost, 2 when the options are wrong. Ranks
/// that leave with 2 or 75 are not started again.
#[derive(Parser)]
#[command(
    version,
    override_usage = "burnrun [OPTIONS] --nproc-per-node <N|auto> -- <PROGRAM> [ARGUMENTS]..."
)]
struct Options {
    /// Ranks on this node; auto takes one per NVIDIA GPU, or one per core where there is no GPU
    #[arg(long, value_name = "N|auto")]
    nproc_per_node: NprocPerNode,

    /// Nodes of the job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    nnodes: usize,

    /// Number of this node, from 0 [default: 0 with one node]
    #[arg(long, value_name = "R")]
    node_rank: Option<usize>,

    /// One node and a free port, which is also what happens without the options for several nodes
    #[arg(long, conflicts_with_all = ["nnodes", "node_rank", "master_addr", "master_port"])]
    standalone: bool,

    /// Host name or address at which node 0 is reached [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    master_addr: Option<String>,

    /// Port at which the nodes meet, or the ranks of one node [default: 29500 with several nodes, else a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    master_port: Option<u16>,

    /// How often all ranks are started again after a failure
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: usize,

    /// Time that the nodes wait for each other, at the start and after a failure
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    rdzv_timeout_seconds: f64,

    /// Silence after which another node counts as lost
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    heartbeat_timeout_seconds: f64,

    /// File with 32 hexadecimal digits or more that the nodes prove to each other, the same on all, such as `openssl rand
    /// -hex 32` prints [default: the variable BURN_NCCL_SECRET]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// Also write each rank's output to DIR/rank-N.log, or DIR/restart-K/rank-N.log after restart K
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix")]
    log_dir: Option<PathBuf>,

    /// Show the output of these ranks of this node only, as in 0,2
    #[arg(long, value_name = "RANKS", value_delimiter = ',', conflicts_with = "no_prefix")]
    local_ranks_filter: Option<Vec<usize>>,

    /// Also write how the job ended to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

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

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("give a whole number of at least 1".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(seconds),
        _ => Err("give a number above 0, at most 1e9".to_owned()),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.nnodes > 1 && options.node_rank.is_none() {
        let needs = "--nnodes needs --node-rank, the number of this node from 0";
        Options::command().error(ErrorKind::MissingRequiredArgument, needs).exit();
    }
    let (last_words, code) = match launch(options) {
        // The ranks' exit codes and 128 + signal all fit; anything else is a failure.
        Ok(outcome) => (outcome.to_string(), u8::try_from(outcome.exit_code()).unwrap_or(1)),
        Err(error) => (format!("error: {error}\n"), 1),
    };
    // Not eprint!, which would panic, and change the exit code, where nobody reads stderr any more.
    let _ = io::stderr().write_all(last_words.as_bytes());
    ExitCode::from(code)
}

fn warn(text: &str) {
    // Not eprint!, as above.
    let _ = io::stderr().write_all(format!("warning: {text}\n").as_bytes());
}

fn launch(options: Options) -> Result<Outcome, LaunchError> {
    let mut command = options.command.into_iter();
    // clap has refused an empty command.
    let program = command.next().unwrap_or_default();
    let mut config = LaunchConfig::new(program, options.nproc_per_node.resolve());
    config.args = command.collect();
    config.nnodes = options.nnodes;
    config.node_rank = options.node_rank.unwrap_or(0);
    match options.master_addr {
        Some(address) => config.master_addr = address,
        // Right only where all nodes are on one host.
        None if options.nnodes > 1 => warn(&format!(
            "node 0 is looked for on this host, at {}, because no --master-addr says where it is",
            config.master_addr
        )),
        None => {}
    }
    config.master_port = options.master_port;
    config.max_restarts = options.max_restarts;
    config.rendezvous_timeout = Duration::from_secs_f64(options.rdzv_timeout_seconds);
    config.heartbeat_timeout = Duration::from_secs_f64(options.heartbeat_timeout_seconds);
    config.secret = match &options.secret_file {
        Some(file) => Some(secret_from_file(file)?),
        None => secret_from_environment()?,
    };
    config.log_dir = options.log_dir;
    config.local_ranks_filter = options.local_ranks_filter;
    config.report = options.report;
    config.grace = Duration::from_secs(options.grace_seconds.into());
    if options.no_prefix {
        config.rank_zero_output = RankOutput::Inherit;
        config.other_output = RankOutput::Inherit;
    }
    run(&config)
}
