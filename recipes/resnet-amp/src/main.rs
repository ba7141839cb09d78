//! Trains a residual network in mixed precision, on one device or several.

use std::process::ExitCode;

use clap::Parser;
use recipe_common::{DistributedOptions, MixedPrecisionOptions, TrainOptions, command_line, distributed};

/// Train a residual network with convolutions in bf16 or f16 and weights in f32, with one process per GPU or several
/// on the CPU. Without options: ResNet-50 on the bundled handwritten digits in bf16.
#[derive(Parser)]
#[command(version, after_help = recipe_common::EXIT_CODES)]
struct Options {
    #[command(flatten)]
    train: TrainOptions,
    #[command(flatten)]
    distributed: DistributedOptions,
    #[command(flatten)]
    mixed_precision: MixedPrecisionOptions,
}

fn main() -> ExitCode {
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        distributed::run("resnet-amp", &options.train, &options.distributed, Some(&options.mixed_precision))
    })
}
