//! A recipe with several ranks: starts them, or is one of them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn_nccl::launch::{LaunchConfig, NprocPerNode, Outcome, RankOutput};
use burn_nccl::{Environment, GroupOptions, ProcessGroup};

use crate::config::{RunConfig, ddp_config};
use crate::data::Images;
use crate::error::{RecipeError, Result};
use crate::options::{DistributedOptions, ProgressChoice, TrainOptions};
use crate::parallel::Parallel;
use crate::progress::{self, display};
use crate::run_folder::{LOG_FOLDER, RunFolder};
use crate::train::Run;

/// How long a rank may take to end after another one has failed, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Trains on several ranks.
///
/// Without a rank in the environment the recipe starts copies of itself and waits for them. Under burnrun, torchrun,
/// mpirun or srun it is one of the ranks.
///
/// # Errors
/// Where an option asks for what is not there, where the ranks do not find each other, and as [`Run::train`].
pub fn run(
    recipe: &'static str,
    options: &TrainOptions,
    distributed: &DistributedOptions,
) -> Result<ExitCode> {
    let environment = Environment::read().map_err(RecipeError::environment)?;
    match environment {
        None => start_ranks(recipe, options, distributed),
        Some(environment) => run_rank(recipe, options, distributed, &environment),
    }
}

/// Starts the ranks on this machine and returns the job's exit code.
fn start_ranks(recipe: &str, options: &TrainOptions, distributed: &DistributedOptions) -> Result<ExitCode> {
    let ranks = match distributed.nproc_per_node {
        NprocPerNode::Auto => options.device.default_ranks(),
        NprocPerNode::Count(count) => count.get(),
    };
    // What all ranks would find wrong is said once, before there are ranks.
    check(options, distributed, ranks)?;
    let out = options.out.clone().map_or_else(|| RunFolder::claim(recipe), Ok)?;
    let config = launch_config(options, distributed, ranks, out)?;
    let outcome = burn_nccl::launch::run(&config).map_err(RecipeError::launch)?;
    if !is_told(&outcome) {
        eprint!("{outcome}");
    }
    // Exit codes and 128 + signal fit; anything else is a failure.
    Ok(u8::try_from(outcome.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Finds what is wrong with the options or the data, for all ranks.
fn check(options: &TrainOptions, distributed: &DistributedOptions, ranks: usize) -> Result<()> {
    let config = RunConfig::new(options, Some(distributed));
    progress::check(options.progress)?;
    options.out.as_deref().map_or(Ok(()), RunFolder::check_unused)?;
    let images = Images::open(&config)?;
    for rank in 0..ranks {
        let device = config.device.select(rank, ranks)?;
        images.train_loader(&config, &device.device, rank, ranks)?;
        images.test_loader(&config, &device.device, rank, ranks)?;
    }
    Ok(())
}

fn launch_config(
    options: &TrainOptions,
    distributed: &DistributedOptions,
    ranks: usize,
    out: PathBuf,
) -> Result<LaunchConfig> {
    let mut config = LaunchConfig::this_program(ranks).map_err(RecipeError::launch)?;
    config.args = std::env::args_os().skip(1).collect();
    // The default name has the time in it, which would differ between the ranks.
    config.args.extend(["--out".into(), out.clone().into()]);
    config.master_addr = distributed.master_addr.clone();
    config.master_port = distributed.master_port;
    config.rank_zero_output = match options.progress {
        ProgressChoice::Tui => RankOutput::Terminal,
        _ => RankOutput::Inherit,
    };
    config.other_output = RankOutput::LogOnly;
    // Ranks end by themselves when one fails; a rank that does not is stopped or stuck, and nothing is worth the wait.
    config.grace = GRACE;
    // Rank 0 writes to the terminal, so that a rank alone has no log.
    config.log_dir = (ranks > 1).then(|| out.join(LOG_FOLDER));
    Ok(config)
}

/// Whether rank 0 has already said on the terminal why the job failed.
fn is_told(outcome: &Outcome) -> bool {
    let Outcome::Failed(failure) = outcome else { return false };
    failure.first.rank == 0 && failure.first.report.as_ref().is_some_and(|report| !report.consequence)
}

/// Trains as one of the ranks.
fn run_rank(
    recipe: &'static str,
    options: &TrainOptions,
    distributed: &DistributedOptions,
    environment: &Environment,
) -> Result<ExitCode> {
    let started = Instant::now();
    let (rank, world_size) = (environment.rank, environment.world_size);
    let config = RunConfig::new(options, Some(distributed));
    if rank == 0 {
        progress::check(options.progress)?;
        options.out.as_deref().map_or(Ok(()), RunFolder::check_unused)?;
    }
    let device = config.device.select(environment.local_rank, environment.local_world_size)?;
    let images = Images::open(&config)?;
    let train = images.train_loader(&config, &device.device.clone().autodiff(), rank, world_size)?;
    let test = images.test_loader(&config, &device.device, rank, world_size)?;

    let timeout = Duration::from_secs_f64(distributed.timeout_seconds);
    let group = ProcessGroup::connect(
        environment,
        GroupOptions::default().with_timeout(timeout).with_connect_timeout(timeout),
    )
    .map_err(|error| RecipeError::group("the ranks did not find each other", error))?;
    // Each rank draws the same weights; rank 0's are sent to all.
    device.device.seed(config.seed);
    let model = config.model(images.num_classes()).init(&device.device.clone().autodiff()).materialize();
    let (parallel, model) = Parallel::join(&group, model, &ddp_config(distributed, &device))?;
    let progress = display(options.progress, rank);
    let out = match &options.out {
        Some(out) => out.clone(),
        None if rank == 0 => RunFolder::claim(recipe)?,
        // Only rank 0 writes.
        None => PathBuf::new(),
    };
    Run { recipe, config, device, train, test, parallel, out, progress, started }.train(model)?;
    Ok(ExitCode::SUCCESS)
}
