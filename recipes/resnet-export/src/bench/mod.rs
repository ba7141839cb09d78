//! `bench`: the engines beside each other.

#[allow(dead_code, reason = "the measurement of the service calls it")]
pub(crate) mod client;
#[allow(dead_code, reason = "the measurement of the service calls it")]
pub(crate) mod load;

use clap::Args;
use recipe_common::Result;

/// Measure latency, throughput and memory of the engines.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("lead")
}
