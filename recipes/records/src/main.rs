//! Shows, checks and converts files of weights.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use recipe_common::command_line;

mod convert;
mod lfs;
mod manifest;
mod show;
mod source;
mod verify;

/// Show, check and convert files of weights: PyTorch, safetensors, burnpack, checkpoints.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(show::Options),
    Manifest(manifest::Options),
    Verify(verify::Options),
    Convert(convert::Options),
    Lfs(lfs::Options),
}

fn main() -> ExitCode {
    recipe_common::main(|| {
        let options: Options = command_line::parse(std::env::args_os())?;
        match options.command {
            Command::Show(options) => show::run(&options),
            Command::Manifest(options) => manifest::run(&options),
            Command::Verify(options) => verify::run(&options),
            Command::Convert(options) => convert::run(&options),
            Command::Lfs(options) => lfs::run(&options),
        }
        .map(|()| ExitCode::SUCCESS)
    })
}
