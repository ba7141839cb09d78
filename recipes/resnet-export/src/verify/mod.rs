//! `verify`: whether an export computes what the network does.

use clap::Args;
use recipe_common::Result;

/// Run an export by every engine and compare with Burn.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper C")
}
