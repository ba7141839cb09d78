//! A recipe with several ranks: starts them, or is one of them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use burn_nccl::launch::NprocPerNode;
use burn_nccl::{DType, Environment, GroupOptions, ProcessGroup, ReduceOp};

use crate::batch_size::{self, trial};
use crate::config::{JobOptions, RunConfig, ddp_config};
use crate::data::Images;
use crate::device::SelectedGpu;
use crate::error::{RecipeError, Result};
use crate::launcher::{check_nodes, is_told, launch_config};
use crate::options::{DistributedOptions, MixedPrecisionOptions, TrainOptions};
use crate::parallel::Parallel;
use crate::place::{PLACE, Place, warn_of_topology};
use crate::progress::{self, display};
use crate::resume::{self, Resume};
use crate::train::{Run, initial_model};

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

/// Starts the ranks on this node and returns the job's exit code.
fn start_ranks(recipe: &str, job: JobOptions<'_>, distributed: &DistributedOptions) -> Result<ExitCode> {
    let options = job.train;
    let ranks = match distributed.nproc_per_node {
        NprocPerNode::Auto => options.device.default_ranks(),
        NprocPerNode::Count(count) => count.get(),
    };
    check_nodes(job.train, distributed)?;
    // What all ranks would find wrong is said once, before there are ranks.
    let resume = check(recipe, job, distributed, ranks)?;
    let out = resume::run_folder(recipe, options.out.as_deref(), resume.as_ref())?;
    let config = launch_config(options, distributed, ranks, out)?;
    let outcome = burn_nccl::launch::run(&config).map_err(RecipeError::launch)?;
    if !(distributed.node_rank.unwrap_or(0) == 0 && is_told(&outcome)) {
        eprint!("{outcome}");
    }
    // Exit codes and 128 + signal fit; anything else is a failure.
    Ok(u8::try_from(outcome.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Finds what is wrong with the options, the checkpoint or the data, for all ranks of this node. Returns the checkpoint.
///
/// How many ranks the other nodes have is not known yet; they are taken to have as many.
fn check(
    recipe: &str,
    job: JobOptions<'_>,
    distributed: &DistributedOptions,
    ranks: usize,
) -> Result<Option<Resume>> {
    let node = distributed.node_rank.unwrap_or(0);
    let world_size = ranks * distributed.nnodes;
    let mut config = RunConfig::new(job);
    progress::check(job.train.progress)?;
    let resume = resume::open(recipe, job.train)?;
    // The others may come when rank 0 has begun to write.
    if node == 0 {
        resume::check_out(job.train, resume.as_ref())?;
    }
    let images = Images::open(&config)?;
    if let Some(resume) = &resume {
        resume.adapt(&mut config, images.train_len(), world_size)?;
    }
    for local_rank in 0..ranks {
        let rank = node * ranks + local_rank;
        let device = config.device.preview(local_rank, ranks)?;
        images.train_loader(&config, &device.device, rank, world_size)?;
        images.test_loader(&config, &device.device, rank, world_size)?;
    }
    Ok(resume)
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
    if let Some(distributed) = &mut config.distributed {
        distributed.nproc_per_node = Some(environment.local_world_size);
    }
    let resume = resume::open(recipe, options)?;
    if rank == 0 {
        progress::check(options.progress)?;
        resume::check_out(options, resume.as_ref())?;
    }
    let device = config.device.select(environment.local_rank, environment.local_world_size)?;
    let images = Images::open(&config)?;
    resume::adapt(resume.as_ref(), &mut config, &images, rank, world_size)?;
    // All ranks of a machine try at the same time, since they will train at the same time.
    let fitting =
        if options.find_batch_size { batch_size::find(&config, &device)? } else { config.batch_size };

    let timeout = Duration::from_secs_f64(distributed.timeout_seconds);
    // Another rank may still be searching.
    let searching = if options.find_batch_size { batch_size::TIME_LIMIT } else { Duration::ZERO };
    let group = ProcessGroup::connect(
        environment,
        GroupOptions::default().with_timeout(timeout).with_connect_timeout(timeout + searching),
    )
    .map_err(|error| RecipeError::group("the ranks did not find each other", error))?;
    let (resume, is_other) = resume::follow_rank_0(resume, options.out.as_deref(), &group)?;
    if is_other {
        resume::adapt(resume.as_ref(), &mut config, &images, rank, world_size)?;
    }
    let batch_size = smallest(fitting, &group)?;
    if rank == 0 && batch_size < fitting {
        log::warn!("another rank has memory for {batch_size} images only");
    }
    config.shrink_batch(batch_size);
    let places = agree(&config, resume.as_ref(), device.gpu.as_ref(), &group)?;
    warn_of_topology(&places, environment);
    let train = images.train_loader(&config, &device.device.clone().autodiff(), rank, world_size)?;
    let test = images.test_loader(&config, &device.device, rank, world_size)?;
    // Each rank draws the same weights; rank 0's are sent to all.
    let model = initial_model(&config, &images, &device, resume.as_ref())?;
    let (parallel, model) = Parallel::join(&group, model, &ddp_config(distributed, &device))?;
    let progress = display(options.progress, rank);
    let out = match &options.out {
        // Only rank 0 writes.
        None if rank != 0 && resume.is_none() => PathBuf::new(),
        out => resume::run_folder(recipe, out.as_deref(), resume.as_ref())?,
    };
    let continues = decided(resume::continues(&out, options, resume.as_ref()), &group)?;
    let run =
        Run { recipe, config, device, train, test, parallel, out, progress, started, resume, continues };
    Ok(run.train(model)?.exit_code())
}

/// The smallest of the ranks' batch sizes. They all divide the same number, so this one does too.
fn smallest(batch_size: usize, group: &ProcessGroup) -> Result<usize> {
    let mut smallest = batch_size as i64;
    group
        .all_reduce(bytemuck::bytes_of_mut(&mut smallest), DType::I64, ReduceOp::Min)
        .map_err(|error| RecipeError::group("the ranks did not agree on a batch size", error))?;
    Ok(smallest as usize)
}

/// What rank 0 has found, on all ranks: each may see another folder, and they must do the same.
fn decided(own: bool, group: &ProcessGroup) -> Result<bool> {
    let all = group
        .all_gather_bytes(&[u8::from(own)])
        .map_err(|error| RecipeError::group("the ranks did not agree on the run folder", error))?;
    Ok(all.first().and_then(|rank_0| rank_0.first()) == Some(&1))
}

/// Refuses ranks that were started with other options. Most would train on without an error, and diverge. Returns where each
/// rank computes.
fn agree(
    config: &RunConfig,
    resume: Option<&Resume>,
    gpu: Option<&SelectedGpu>,
    group: &ProcessGroup,
) -> Result<Vec<Option<Place>>> {
    let what = "the ranks cannot train one model";
    let unwritten =
        |error| RecipeError::failure(what, format!("the options were not written: {error}"), "report it");
    let mut own = serde_json::to_value(config).map_err(unwritten)?;
    // Ranks may see a checkpoint under different paths, but it is the same one.
    own["resume"] = resume.map(Resume::identity).transpose()?.into();
    own[PLACE] = serde_json::to_value(Place::own(gpu)).map_err(unwritten)?;
    let own = serde_json::to_vec(&own).map_err(unwritten)?;
    let all = group.all_gather_bytes(&own).map_err(|error| RecipeError::group(what, error))?;
    match all.iter().enumerate().find_map(|(rank, other)| difference(&all[0], other).map(|text| (rank, text)))
    {
        None => Ok(all.iter().map(|bytes| Place::sent(bytes)).collect()),
        Some((rank, text)) => Err(RecipeError::failure(
            what,
            format!("rank {rank} was started with other options than rank 0: {text}"),
            if text.starts_with("--resume") {
                "keep the run folder where all ranks see the same files"
            } else {
                "start all ranks with the same command line"
            },
        )),
    }
}

/// The first option that differs between two configurations and matters to training.
fn difference(first: &[u8], other: &[u8]) -> Option<String> {
    // Ranks may run on other machines, with other paths and numbers of processors. The weights are rank 0's.
    const MAY_DIFFER: [&str; 6] = ["device", "workers", "data", "nproc-per-node", "weights", PLACE];
    let read = |bytes: &[u8]| serde_json::from_slice::<Map<String, Value>>(bytes).unwrap_or_default();
    let (first, other) = (read(first), read(other));
    let keys = first.keys().chain(other.keys()).filter(|key| !MAY_DIFFER.contains(&key.as_str()));
    let show = |value: Option<&Value>| value.map_or("not given".into(), ToString::to_string);
    keys.into_iter()
        .find(|key| first.get(*key) != other.get(*key))
        .map(|key| format!("--{key} is {}, {} on rank 0", show(other.get(key)), show(first.get(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_differs_is_named_with_both_values_unless_it_may() {
        let first = br#"{"lr":0.1,"device":"cpu","clip-grad-norm":null}"#;
        assert_eq!(difference(first, br#"{"lr":0.1,"device":"cuda","clip-grad-norm":null}"#), None);
        assert_eq!(difference(first, br#"{"lr":0.1,"place":{"machine":"b"},"clip-grad-norm":null}"#), None);
        assert_eq!(
            difference(first, br#"{"lr":0.3,"device":"cpu","clip-grad-norm":null}"#),
            Some("--lr is 0.3, 0.1 on rank 0".into())
        );
        assert_eq!(
            difference(first, br#"{"lr":0.1,"clip-grad-norm":null,"wire":"f16"}"#),
            Some(r#"--wire is "f16", not given on rank 0"#.into())
        );
    }
}
