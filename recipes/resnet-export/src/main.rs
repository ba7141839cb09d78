//! From a checkpoint to a small, fast, checked deployment on CPUs.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use recipe_common::command_line;

mod bench;
mod bundle;
mod burn_engine;
mod child_process;
mod classifier;
mod classify;
mod comparison;
mod engine_options;
mod export;
mod import;
mod package;
mod panic_text;
mod picture;
mod process;
mod serve;
mod test_images;
mod verify;

/// Export a trained network to ONNX, check it, and classify images with it: by command or over HTTP.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Export(export::Options),
    Verify(verify::Options),
    Classify(classify::Options),
    Serve(serve::Options),
    Bundle(bundle::Options),
    Bench(bench::Options),
    #[command(hide = true)]
    BenchWorker(bench::worker::Options),
    Import(import::Options),
}

fn main() -> ExitCode {
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        match options.command {
            Command::Export(options) => export::run(&options),
            Command::Verify(options) => verify::run(&options),
            Command::Classify(options) => classify::run(&options),
            Command::Serve(options) => serve::run(&options),
            Command::Bundle(options) => bundle::run(&options),
            Command::Bench(options) => bench::run(&options),
            Command::BenchWorker(options) => bench::worker::run(&options),
            Command::Import(options) => import::run(&options),
        }
        .map(|()| ExitCode::SUCCESS)
    })
}
