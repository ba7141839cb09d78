//! Trains a residual network on several devices or processes.

use std::process::ExitCode;

use clap::Parser;
use recipe_common::{DistributedOptions, TrainOptions, command_line, distributed};

/// Train a residual network with one process per GPU, or several on the CPU. Without options: ResNet-50 on the
/// bundled handwritten digits, one rank per GPU or two on the CPU.
#[derive(Parser)]
#[command(version, after_help = recipe_common::EXIT_CODES)]
struct Options {
    #[command(flatten)]
    train: TrainOptions,
    #[command(flatten)]
    distributed: DistributedOptions,
}

fn main() -> ExitCode {
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        distributed::run("resnet-ddp", &options.train, &options.distributed, None)
    })
}
