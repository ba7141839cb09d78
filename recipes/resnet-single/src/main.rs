//! Trains a residual network on one device.

use std::process::ExitCode;

use clap::Parser;
use recipe_common::{TrainOptions, command_line, single};

/// Train a residual network on one device. Without options: ResNet-50 on the bundled handwritten digits.
#[derive(Parser)]
#[command(version, after_help = recipe_common::EXIT_CODES)]
struct Options {
    #[command(flatten)]
    train: TrainOptions,
}

fn main() -> ExitCode {
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        single::run("resnet-single", &options.train)
    })
}
