//! Files of weights and checkpoints, on real files.

// As in burn-linalg: Burn has deprecated its ndarray backend, which serves here as a second device.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod checkpoints;
mod fixtures;
mod hostile;
mod loading;
mod loading_devices;
mod loading_formats;
mod loading_hostile;
mod loading_memory;
mod manifest;
mod saving;
mod saving_faults;
mod saving_python;

use std::io::Write;

/// A skip is said on the terminal even where the test harness keeps the output of tests that pass.
fn skip(test: &str, reason: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}
