//! Everything that a rank can be asked to do.

use std::time::Duration;

use burn_nccl::launch::LaunchConfig;
use burn_nccl::{DType, Environment, Error, GroupOptions, ProcessGroup, ReduceOp};
use burn_nccl_datasets::Sampling;
use serde::{Deserialize, Serialize};

use crate::conformance::Part;
use crate::exchange::Exchange;
use crate::learning::Learning;
use crate::parts::{Halves, outlive};
use crate::report::Report;
use crate::resnet::ResNetTraining;
use crate::resuming::Resuming;
use crate::saving::{Saving, refusal};
use crate::training::{Training, group};
use crate::{evaluation, stress};

const TIMEOUT_SECONDS: u64 = 60;

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Scenario {
    /// Adds up the ranks' numbers.
    Reduce,
    /// Joins the others within this many seconds.
    Join(u64),
    /// Trains a small net as one of the ranks.
    Train(Training),
    /// Trains it alone on the joined batches.
    Joined(Training),
    /// Trains a ResNet-18 as one of the ranks.
    ResNet(ResNetTraining),
    /// Trains it alone on the joined batches of this many ranks.
    JoinedResNet(ResNetTraining, usize),
    /// Trains for many steps on forks and clones.
    Stress(usize),
    /// Counts right answers on this many samples.
    Evaluate(usize, Sampling),
    /// Runs collectives in rounds.
    Exchange(Exchange),
    /// Trains with burn-train.
    Learn(Learning),
    /// Saves checkpoints alone.
    Save(Saving),
    /// Trains as one of the ranks, from a checkpoint to a checkpoint.
    Resume(Resuming),
    /// Trains in one half of the ranks, while the other half trains too.
    Halves(Box<Halves>),
    /// Goes on in a group of its own when the last rank dies.
    Outlive,
    /// Plays parts of the conformance suite, on the transport that the environment chooses.
    Conform(Vec<Part>),
    /// Is no rank but the launcher of this many.
    Launch(usize, Box<Scenario>),
}

impl Scenario {
    /// Plays the scenario as a rank.
    ///
    /// # Errors
    /// What the group or data-parallel training returns.
    ///
    /// # Panics
    /// On [`Scenario::Launch`], which is no rank's.
    pub fn play(&self) -> Result<Report, Error> {
        match self {
            Self::Reduce => reduce(),
            Self::Join(seconds) => join(*seconds),
            Self::Train(training) => training.by_ranks().map(Report::Trained),
            Self::Joined(training) => Ok(Report::Trained(training.joined())),
            Self::ResNet(training) => training.by_ranks().map(Report::Trained),
            Self::JoinedResNet(training, ranks) => Ok(Report::Trained(training.joined(*ranks))),
            Self::Stress(steps) => stress::train(*steps).map(Report::Trained),
            Self::Evaluate(samples, sampling) => evaluation::evaluate(*samples, *sampling),
            Self::Exchange(exchange) => exchange.run(),
            Self::Learn(learning) => learning.run().map(Report::Learned),
            Self::Save(saving) => Ok(Report::Saved(saving.run())),
            Self::Resume(resuming) => match resuming.by_ranks() {
                Ok(resumed) => Ok(Report::Resumed(resumed)),
                Err(error) => refusal(error).map(Report::Refused),
            },
            Self::Halves(halves) => halves.train().map(Report::Trained),
            Self::Outlive => outlive(),
            Self::Conform(parts) => conform(parts),
            Self::Launch(..) => panic!("a launcher does not run under a launcher"),
        }
    }

    /// As the only argument of the program.
    pub fn to_argument(&self) -> String {
        serde_json::to_string(self).expect("a scenario is plain data")
    }

    /// How to launch it, where it is [`Scenario::Launch`].
    pub fn launch_config(&self) -> Option<LaunchConfig> {
        let Self::Launch(ranks, scenario) = self else { return None };
        let mut config = LaunchConfig::this_program(*ranks).expect("the program's own file");
        config.args = vec![scenario.to_argument().into()];
        config.threads_per_rank = Some(1);
        Some(config)
    }
}

fn join(seconds: u64) -> Result<Report, Error> {
    let options = GroupOptions::default().with_connect_timeout(Duration::from_secs(seconds));
    let Some(environment) = Environment::read()? else { panic!("this scenario is played under a launcher") };
    let group = ProcessGroup::connect(&environment, options)?;
    Ok(Report::Conformed { world_size: group.world_size(), transport: group.transport_name().to_owned() })
}

fn reduce() -> Result<Report, Error> {
    let group = group(TIMEOUT_SECONDS)?;
    let mut number = (group.rank() as i64 + 1).to_ne_bytes();
    group.all_reduce(&mut number, DType::I64, ReduceOp::Sum)?;
    let (rank, world_size) = (group.rank(), group.world_size());
    Ok(Report::Reduced { rank, world_size, sum: i64::from_ne_bytes(number) })
}

fn conform(parts: &[Part]) -> Result<Report, Error> {
    let group = group(TIMEOUT_SECONDS)?;
    parts.iter().for_each(|part| part.play(&group));
    Ok(Report::Conformed { world_size: group.world_size(), transport: group.transport_name().to_owned() })
}
