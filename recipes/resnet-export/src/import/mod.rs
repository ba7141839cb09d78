//! `import`: from ONNX to Burn code.

mod batch_norm;
mod convert;
mod destination;
mod module_name;
mod summary;
mod weights;

use std::path::PathBuf;

use burn_nccl_inference::Onnx;
use clap::Args;
use recipe_common::output::print;
use recipe_common::{RecipeError, Result};

use crate::engine_options::inference;
use destination::Destination;

const EXPORT_FROM_TORCH: &str = "\
From PyTorch, with the batch norms kept, in one file, for any number of images:
  torch.onnx.export(model.eval(), (images,), \"model.onnx\", dynamo=False, opset_version=18,
                    training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
                    input_names=[\"images\"], output_names=[\"logits\"],
                    dynamic_axes={\"images\": {0: \"batch\"}, \"logits\": {0: \"batch\"}})
With training=EVAL, the default, batch norms are folded into the convolutions, and nothing of them is left to train.";

/// Turn an ONNX file into Burn code that can be trained.
#[derive(Args)]
#[command(after_help = EXPORT_FROM_TORCH)]
pub(crate) struct Options {
    /// The network: an image classifier, with its weights in the file.
    model: PathBuf,
    /// Folder for NAME.rs and NAME.bpk; made where it is missing.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Name of the new module and its files; that of the ONNX file unless given.
    #[arg(long)]
    name: Option<String>,
    /// Replace existing files.
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let name = module_name::choose(options.name.as_deref(), &options.model)?;
    let destination = Destination::new(&options.to, &name, options.overwrite)?;
    let what = format!("cannot import {}", options.model.display());
    let onnx = Onnx::open(&options.model).map_err(|error| inference(&what, &error))?;
    let generated = convert::convert(&onnx, &options.model, &name)
        .map_err(|(cause, remedy)| RecipeError::failure(&what, cause, remedy))?;
    destination.write(&generated)?;
    print(&summary::summary(&destination, &name, &onnx)?)
}
