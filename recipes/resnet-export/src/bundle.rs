//! `bundle`: one file that is program and network.

use clap::Args;
use recipe_common::Result;

/// Make one program of this one and an export.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper E")
}
