//! `classify`: the classes of pictures.

use clap::Args;
use recipe_common::Result;

/// Classify JPEG and PNG files.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper E")
}
