//! How a recipe starts its own ranks.

use std::path::PathBuf;
use std::time::Duration;

use burn_nccl::launch::{LaunchConfig, Outcome, RankOutput, secret_from_environment};

use crate::error::{RecipeError, Result};
use crate::options::{DistributedOptions, ProgressChoice, TrainOptions};
use crate::run_folder::LOG_FOLDER;

/// How long a rank may take to end after another one has failed, before it is killed. Ranks end by themselves then; one that
/// does not is stopped or stuck, and nothing is worth the wait.
const FAILURE_GRACE: Duration = Duration::from_secs(5);

/// How long ranks may take to finish a step and write a checkpoint after a signal has asked them to stop.
const STOP_GRACE: Duration = Duration::from_secs(120);

/// Refuses options for several nodes that do not go together.
///
/// # Errors
/// A usage error.
pub(crate) fn check_nodes(options: &TrainOptions, distributed: &DistributedOptions) -> Result<()> {
    let (what, nnodes) = ("the options for several nodes do not go together", distributed.nnodes);
    let last = nnodes - 1;
    match (nnodes, distributed.node_rank) {
        (1, None | Some(0)) => Ok(()),
        (_, None) => {
            let remedy = format!("give each node its own number from 0 to {last}");
            Err(RecipeError::usage(what, "--nnodes is given without --node-rank", remedy))
        }
        (_, Some(node)) if node > last => {
            let remedy = format!("give a number from 0 to {last}, or a larger --nnodes");
            Err(RecipeError::usage(what, format!("--node-rank {node} is not one of {nnodes} nodes"), remedy))
        }
        // A default name has the time in it, which differs between the nodes.
        _ if options.out.is_none() => Err(RecipeError::usage(
            what,
            "there is no --out, and each node would choose another folder",
            "give all nodes an --out that they all see, for the checkpoints",
        )),
        _ => Ok(()),
    }
}

/// How the ranks of this node are started, which write to `out`.
///
/// # Errors
/// Where the program's file is not known, or the secret is none.
pub(crate) fn launch_config(
    options: &TrainOptions,
    distributed: &DistributedOptions,
    ranks: usize,
    out: PathBuf,
) -> Result<LaunchConfig> {
    let mut config = LaunchConfig::this_program(ranks).map_err(RecipeError::launch)?;
    config.args = std::env::args_os().skip(1).collect();
    // The default name has the time in it, which would differ between the ranks.
    config.args.extend(["--out".into(), out.clone().into()]);
    // All ranks resume from what was found here, though a newer checkpoint may appear.
    config.args.extend(["--resume".into(), options.resume.argument()]);
    config.nnodes = distributed.nnodes;
    config.node_rank = distributed.node_rank.unwrap_or(0);
    config.max_restarts = distributed.max_restarts;
    config.rendezvous_timeout = Duration::from_secs_f64(distributed.timeout_seconds);
    config.secret = secret_from_environment().map_err(RecipeError::launch)?;
    config.master_addr = distributed.master_addr.clone();
    config.master_port = distributed.master_port;
    config.rank_zero_output = match options.progress {
        ProgressChoice::Tui => RankOutput::Terminal,
        _ => RankOutput::Inherit,
    };
    config.other_output = RankOutput::LogOnly;
    config.grace = STOP_GRACE;
    config.grace_after_failure = Some(FAILURE_GRACE);
    // Rank 0 writes to the terminal, so that a rank alone has no log.
    config.log_dir = (ranks > 1 || config.node_rank > 0).then(|| out.join(LOG_FOLDER));
    Ok(config)
}

/// Whether rank 0 has already said on the terminal why the job failed.
pub(crate) fn is_told(outcome: &Outcome) -> bool {
    let Outcome::Failed(failure) = outcome else { return false };
    failure.first.rank == 0 && failure.first.report.as_ref().is_some_and(|report| !report.consequence)
}
