//! `import`: from ONNX to Burn code.

use clap::Args;
use recipe_common::Result;

/// Turn an ONNX file into Burn code that can be trained.
#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(options: &Options) -> Result<()> {
    let _ = options;
    todo!("helper D")
}
