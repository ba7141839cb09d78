//! Measures collectives beside torch.distributed, and computes what they cost where nobody has measured.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use recipe_common::command_line;

mod all_reduce;
// The crate's own bench has it too.
#[path = "../../../backend-nccl/benches/engine/mod.rs"]
mod engine;
mod model;
mod scaling;
mod sides;
mod size;

/// Measure the collectives of this machine, or compute those of a larger one.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    AllReduce(all_reduce::Options),
    Scaling(scaling::Options),
    Model(model::Options),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(end) = engine::play(&arguments) {
        return end.unwrap_or_else(|error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        });
    }
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        match options.command {
            Command::AllReduce(options) => all_reduce::run(&options),
            Command::Scaling(options) => scaling::run(&options),
            Command::Model(options) => model::run(&options),
        }
        .map(|()| ExitCode::SUCCESS)
    })
}
