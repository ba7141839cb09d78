//! What every recipe shares: options, run folder, devices, launch, training loop, progress.
//!
//! A recipe is a short `main` that adds one thing to this crate. The whole of `resnet-single`:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use clap::Parser;
//! use recipe_common::{TrainOptions, command_line, single};
//!
//! /// Train a residual network on one device.
//! #[derive(Parser)]
//! struct Options {
//!     #[command(flatten)]
//!     train: TrainOptions,
//! }
//!
//! fn main() -> ExitCode {
//!     recipe_common::main(|| {
//!         let options: Options = command_line::parse(std::env::args_os())?;
//!         single::run("resnet-single", &options.train)
//!     })
//! }
//! ```
//!
//! To make another one:
//!
//! 1. Flatten [`TrainOptions`] (and [`DistributedOptions`], [`MixedPrecisionOptions`]) into a clap `Parser` and add the recipe's own options.
//!    They can be given in a `--config` file without further work.
//! 2. [`single::run`] and [`distributed::run`] are the two ways to come from options to a [`Run`]; a recipe that
//!    needs another model, optimizer or data writes its own, of the same parts.
//! 3. [`Run::train`] is the loop. What differs between one rank and many is behind [`Parallel`].
//! 4. Errors are [`RecipeError`]s: what failed, why, what to do. [`main`] shows them and chooses the exit code.

mod batch_size;
mod batch_statistics;
mod checkpoints;
pub mod command_line;
pub mod config;
pub mod data;
pub mod device;
pub mod distributed;
pub mod error;
pub mod evaluate;
mod launcher;
pub mod machine;
mod main_function;
pub mod metrics;
mod mixed_precision;
pub mod optimizer;
pub mod options;
pub mod output;
mod ownership;
pub mod parallel;
pub mod parameters;
mod place;
pub mod plot;
pub mod progress;
pub mod recorder;
mod resume;
pub mod run_folder;
pub mod schedule;
pub mod single;
mod stop;
pub mod tensorboard;
pub mod train;
mod trainer;
mod warning;
mod weights;
pub mod wire;

pub use config::{JobOptions, RunConfig};
pub use error::{RecipeError, Result};
pub use main_function::{EXIT_CODES, main};
pub use options::{CheckpointOptions, DistributedOptions, MixedPrecisionOptions, TrainOptions};
pub use parallel::Parallel;
pub use resume::{Resume, ResumeChoice};
pub use train::{Ended, Run};
