//! A recipe with several ranks: starts them, or is one of them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn_nccl::launch::{LaunchConfig, NprocPerNode, Outcome, RankOutput};
use burn_nccl::{DType, Environment, GroupOptions, ProcessGroup, ReduceOp};

use crate::batch_size::{self, trial};
use crate::config::{JobOptions, RunConfig, ddp_config};
use crate::data::Images;
use crate::error::{RecipeError, Result};
use crate::options::{DistributedOptions, MixedPrecisionOptions, ProgressChoice, TrainOptions};
use crate::parallel::Parallel;
use crate::progress::{self, display};
use crate::run_folder::{LOG_FOLDER, RunFolder};
use crate::train::{Run, new_model};

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
    mixed_precision: Option<&MixedPrecisionOptions>,
) -> Result<ExitCode> {
    let job = JobOptions { train: options, distributed: Some(distributed), mixed_precision };
    let environment = Environment::read().map_err(RecipeError::environment)?;
    match (options.probe_batch_size, environment) {
        (Some(batch_size), environment) => trial::run(job, batch_size, environment.as_ref()),
        (None, None) => start_ranks(recipe, job, distributed),
        (None, Some(environment)) => run_rank(recipe, job, distributed, &environment),
    }
}

/// Starts the ranks on this machine and returns the job's exit code.
fn start_ranks(recipe: &str, job: JobOptions<'_>, distributed: &DistributedOptions) -> Result<ExitCode> {
    let options = job.train;
    let ranks = match distributed.nproc_per_node {
        NprocPerNode::Auto => options.device.default_ranks(),
        NprocPerNode::Count(count) => count.get(),
    };
    // What all ranks would find wrong is said once, before there are ranks.
    check(job, ranks)?;
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
fn check(job: JobOptions<'_>, ranks: usize) -> Result<()> {
    let config = RunConfig::new(job);
    progress::check(job.train.progress)?;
    job.train.out.as_deref().map_or(Ok(()), RunFolder::check_unused)?;
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
    job: JobOptions<'_>,
    distributed: &DistributedOptions,
    environment: &Environment,
) -> Result<ExitCode> {
    let started = Instant::now();
    let options = job.train;
    let (rank, world_size) = (environment.rank, environment.world_size);
    let mut config = RunConfig::new(job);
    if rank == 0 {
        progress::check(options.progress)?;
        options.out.as_deref().map_or(Ok(()), RunFolder::check_unused)?;
    }
    let device = config.device.select(environment.local_rank, environment.local_world_size)?;
    let images = Images::open(&config)?;
    // All ranks of a machine try at the same time, since they will train at the same time.
    let fitting =
        if options.find_batch_size { batch_size::find(config.batch_size)? } else { config.batch_size };

    let timeout = Duration::from_secs_f64(distributed.timeout_seconds);
    // Another rank may still be searching.
    let searching = if options.find_batch_size { batch_size::TIME_LIMIT } else { Duration::ZERO };
    let group = ProcessGroup::connect(
        environment,
        GroupOptions::default().with_timeout(timeout).with_connect_timeout(timeout + searching),
    )
    .map_err(|error| RecipeError::group("the ranks did not find each other", error))?;
    if options.find_batch_size {
        config.shrink_batch(smallest(fitting, &group)?);
    }
    let train = images.train_loader(&config, &device.device.clone().autodiff(), rank, world_size)?;
    let test = images.test_loader(&config, &device.device, rank, world_size)?;
    // Each rank draws the same weights; rank 0's are sent to all.
    let model = new_model(&config, &images, &device);
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

/// The smallest of the ranks' batch sizes. They all divide the same number, so this one does too.
fn smallest(batch_size: usize, group: &ProcessGroup) -> Result<usize> {
    let mut smallest = batch_size as i64;
    group
        .all_reduce(bytemuck::bytes_of_mut(&mut smallest), DType::I64, ReduceOp::Min)
        .map_err(|error| RecipeError::group("the ranks did not agree on a batch size", error))?;
    Ok(smallest as usize)
}
