//! The frame around a recipe: logging, panics, errors, exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use burn_nccl::launch::{install_panic_hook, report_consequence, report_error};
use tracing_subscriber::EnvFilter;

use crate::error::{ErrorKind, RecipeError, Result};

/// What a recipe's `--help` says at its end.
pub const EXIT_CODES: &str = "\
Exit codes: 0 when the run is complete, 1 after a failure, 2 for wrong options, 75 when SIGTERM or SIGUSR1 has stopped it:
all ranks end after the same step, write a checkpoint (unless there are to be none), and --resume auto goes on from there to
the same weights. Where no checkpoint can be written, a run that is stopped has failed.
A second signal, a second or more after the first, ends the run at once.";

/// Runs a recipe and turns its error into three lines on stderr and an exit code: 2 for a mistake in the options
/// or the launch environment, 1 for a failure; see [`EXIT_CODES`].
///
/// Under a launcher the error is reported to it as well, so that it can tell which rank failed first.
pub fn main(recipe: impl FnOnce() -> Result<ExitCode>) -> ExitCode {
    install_panic_hook();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    recipe().unwrap_or_else(|error| {
        tell(&error);
        ExitCode::from(error.exit_code())
    })
}

fn tell(error: &RecipeError) {
    match error.kind {
        ErrorKind::Usage | ErrorKind::Failure => report_error(&error.to_string()),
        ErrorKind::Consequence => report_consequence(&error.to_string()),
    }
    eprintln!("{}", error.lines());
}
