//! `export`: from a checkpoint to a package.

use clap::Args;
use recipe_common::Result;

/// Export a network to ONNX with all that a deployment needs.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper C")
}
