//! Shows, checks and converts files of weights.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::SUCCESS
}
