//! What the tests share.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../../src/bench/client.rs"]
pub(crate) mod client;
pub(crate) mod colours;
#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../../../../inference/src/testing.rs"]
pub(crate) mod onnx;
pub(crate) mod pictures;
pub(crate) mod server;
pub(crate) mod webdriver;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output};
use std::sync::mpsc::channel;

use self::server::PATIENCE;

pub(crate) const RECIPE: &str = env!("CARGO_BIN_EXE_recipe-resnet-export");

/// A skip is said on the terminal even where the test harness keeps the output of tests that pass.
pub(crate) fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Reads lines on a thread until one is `wanted`, and gives up where that takes too long.
pub(crate) fn wait_for_line<T: Send + 'static>(
    output: impl Read + Send + 'static,
    wanted: impl Fn(&str) -> Option<T> + Send + 'static,
) -> Result<T, String> {
    let (found, line) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
        let _ = lines.find_map(|line| wanted(&line)).map(|value| found.send(value));
        // Whoever writes on would be stopped by a closed pipe.
        lines.for_each(drop);
    });
    line.recv_timeout(PATIENCE).map_err(|error| format!("the line that was waited for: {error}"))
}

/// Runs a program that is not the built recipe itself.
pub(crate) fn run<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[A]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}
