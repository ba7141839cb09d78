//! A process that runs one engine, and does nothing until it is told to.

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde::Deserialize;
use tempfile::NamedTempFile;

use super::peer;
use super::side::Side;
use crate::child_process::{last_line, next_line};

/// How long an engine may take to load, and an order beyond its own duration.
const PATIENCE: Duration = Duration::from_secs(180);

/// An answer: some millions of durations.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// What of a message is shown.
const MAX_MESSAGE_BYTES: u64 = 400;

/// What an engine said of itself when it was ready.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Ready {
    /// Engine and version.
    pub(super) name: String,
    /// From the start of the process's work until it could run.
    pub(super) load_seconds: f64,
    /// What has to be on a machine for it, without the export.
    pub(super) deploy_bytes: u64,
}

/// What was measured of a side.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Seconds of every run of one image, by round.
    pub(super) latency: Vec<Vec<f64>>,
    /// The same of whole batches.
    pub(super) batches: Vec<Vec<f64>>,
    /// Peak resident memory after the runs of one image.
    pub(super) peak_bytes: u64,
}

/// A running process. It ends with this value.
pub(super) struct Child {
    process: std::process::Child,
    orders: ChildStdin,
    answers: Receiver<io::Result<String>>,
    /// The last line of its messages, once it has ended.
    message: Receiver<String>,
    pub(super) ready: Ready,
    _script: NamedTempFile,
}

/// What a process answers; the field that the order asks for is there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    error: Option<String>,
    logits: Vec<f32>,
    seconds: Vec<f64>,
    peak_bytes: u64,
}

impl Child {
    /// Starts a side and waits until it is ready.
    ///
    /// # Errors
    /// What it said instead, or that it said nothing.
    pub(super) fn start(side: &Side, folder: &Path) -> Result<Self, String> {
        let script = peer::script().map_err(|error| format!("no temporary file: {error}"))?;
        let command = side.command(folder, script.path());
        let mut process = command
            .and_then(|mut command| spawn(&mut command))
            .map_err(|error| format!("its process cannot be started: {error}"))?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(orders), Some(output), Some(messages)) = pipes else { unreachable!("all are pipes") };
        let (send, answers) = sync_channel(1);
        // Ends with the pipe, which ends with the process.
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            while let Some(line) = next_line(&mut output, MAX_ANSWER_BYTES).transpose() {
                let is_last = line.is_err();
                if send.send(line).is_err() || is_last {
                    return;
                }
            }
        });
        let (send, message) = sync_channel(1);
        std::thread::spawn(move || send.send(last_line(&mut BufReader::new(messages), MAX_MESSAGE_BYTES)));
        let ready = Ready::default();
        let mut child = Self { process, orders, answers, message, ready, _script: script };
        let line = child.line(PATIENCE)?;
        child.ready = serde_json::from_str(&line).map_err(|_| refusal(&line))?;
        Ok(child)
    }

    /// The logits of the image that every side makes itself: value `i` is `i % 251 / 125.5 - 1`.
    pub(super) fn logits(&mut self) -> Result<Vec<f32>, String> {
        self.ask("logits", Duration::ZERO).map(|answer| answer.logits)
    }

    /// Seconds of each run of a batch, as often as fits into `duration`, once at least and after one that is not counted.
    pub(super) fn run(&mut self, batch: usize, duration: Duration) -> Result<Vec<f64>, String> {
        let answer = self.ask(&format!("run {batch} {}", duration.as_secs_f64()), duration)?;
        if answer.seconds.is_empty() { Err("it measured nothing".into()) } else { Ok(answer.seconds) }
    }

    /// The most memory that it has had.
    pub(super) fn peak_bytes(&mut self) -> Result<u64, String> {
        self.ask("memory", Duration::ZERO).map(|answer| answer.peak_bytes)
    }

    fn ask(&mut self, order: &str, duration: Duration) -> Result<Answer, String> {
        // It fails where the process has ended, which is told below.
        let _ = writeln!(self.orders, "{order}");
        let line = self.line(duration + PATIENCE)?;
        let answer: Answer = serde_json::from_str(&line).map_err(|_| refusal(&line))?;
        match answer.error {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String, String> {
        match self.answers.recv_timeout(limit) {
            Ok(line) => line.map_err(|error| format!("its answer cannot be read: {error}")),
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {limit:.0?}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.last_words()),
        }
    }

    /// Why there is no answer, as far as it has said so. (Its messages end with it, unless others have got them from it.)
    fn last_words(&self) -> String {
        let message = self.message.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let message: String = message.chars().filter(|c| !c.is_control()).collect();
        let separator = if message.is_empty() { "" } else { ": " };
        format!("its process ended without an answer{separator}{message}")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has nothing to lose, and may be in the middle of a run.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(command: &mut Command) -> io::Result<std::process::Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// What a line says that is not the answer.
fn refusal(line: &str) -> String {
    let answer: Answer = serde_json::from_str(line).unwrap_or_default();
    answer.error.unwrap_or_else(|| format!("it answered `{}`", line.chars().take(200).collect::<String>()))
}
