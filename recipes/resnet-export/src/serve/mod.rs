//! `serve`: classification over HTTP.

use clap::Args;
use recipe_common::Result;

/// Classify pictures over HTTP.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper E")
}
