//! The same images by the onnxruntime of a Python, after onnx.checker.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use recipe_common::{RecipeError, Result};
use serde::Deserialize;

use crate::child_process::{tail, wait};

const SCRIPT: &str = include_str!("check.py");

/// Images and how to run them.
pub(super) struct Job<'a> {
    pub(super) model: &'a Path,
    /// `[count, channels, height, width]`.
    pub(super) shape: [usize; 4],
    pub(super) images: &'a [f32],
    pub(super) classes: usize,
    pub(super) batches: &'a [usize],
    pub(super) threads: usize,
    pub(super) deadline: Duration,
}

/// What Python found.
pub(super) struct Found {
    /// `onnxruntime 1.32.0 (Python)`.
    pub(super) engine: String,
    /// The version of the checker that the file has passed.
    pub(super) onnx: String,
    /// `[count, classes]` for each batch size.
    pub(super) logits: Vec<Vec<f32>>,
}

/// The last line that the script prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Report {
    Failed { stage: String, error: String },
    Passed { onnx: String, onnxruntime: String },
}

/// Runs the script with `python`.
///
/// # Errors
/// Where Python cannot be started, lacks a package, refuses the file or does not end in time.
pub(super) fn run(python: &Path, job: &Job<'_>) -> Result<Found> {
    let folder = tempfile::tempdir()
        .map_err(|error| RecipeError::file("create a folder in", &std::env::temp_dir(), error))?;
    let file = |name: &str| folder.path().join(name);
    let bytes: Vec<u8> = job.images.iter().flat_map(|value| value.to_le_bytes()).collect();
    for (name, bytes) in [("images", bytes.as_slice()), ("check.py", SCRIPT.as_bytes())] {
        fs::write(file(name), bytes).map_err(|error| RecipeError::file("write", &file(name), error))?;
    }
    drop(bytes);
    let output =
        |name: &str| File::create(file(name)).map_err(|error| RecipeError::file("write", &file(name), error));
    let model = job.model.canonicalize().map_err(|error| RecipeError::file("read", job.model, error))?;
    let child = Command::new(python)
        .args([&file("check.py"), &model, &file("images"), &file("logits")])
        .arg(job.threads.to_string())
        .arg(job.shape.map(|size| size.to_string()).join(","))
        .args(job.batches.iter().map(ToString::to_string))
        .stdin(Stdio::null())
        .stdout(output("stdout")?)
        .stderr(output("stderr")?)
        .spawn()
        .map_err(|error| {
            refused(python, error.to_string(), "give --against-python the path of a Python program")
        })?;
    let status = end(child, python, job.deadline)?;
    let versions = versions(python, status, &tail(&file("stdout")), &tail(&file("stderr")))?;
    let logits =
        fs::read(file("logits")).map_err(|error| RecipeError::file("read", &file("logits"), error))?;
    finish(python, job, versions, &logits)
}

/// The child's end, which is enforced at the deadline.
fn end(mut child: Child, python: &Path, deadline: Duration) -> Result<ExitStatus> {
    match wait(&mut child, deadline) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => {
            let cause = format!("it did not end within {} s", deadline.as_secs());
            Err(refused(python, cause, "raise --timeout-seconds, or verify fewer --images"))
        }
        Err(error) => Err(refused(python, error.to_string(), "try again")),
    }
}

/// The versions of onnx and onnxruntime, if the script came to its end.
fn versions(python: &Path, status: ExitStatus, stdout: &str, stderr: &str) -> Result<(String, String)> {
    match stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        Some(Report::Passed { onnx, onnxruntime }) if status.success() => Ok((onnx, onnxruntime)),
        Some(Report::Failed { stage, error }) => {
            let remedy = if stage.starts_with("import") {
                "install them into that Python, with `pip install numpy onnx onnxruntime`"
            } else {
                "export the network again, and report it if that does not help"
            };
            // Of many lines the first one says what is wrong.
            let error = error.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
            Err(refused(python, format!("the file does not {stage}: {error}"), remedy))
        }
        _ => {
            let last =
                stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            Err(refused(python, format!("it ended with {status}: {last}"), "give the path of a Python 3"))
        }
    }
}

fn finish(
    python: &Path,
    job: &Job<'_>,
    (onnx, onnxruntime): (String, String),
    logits: &[u8],
) -> Result<Found> {
    let each = job.shape[0] * job.classes;
    let values: Vec<f32> = logits.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if values.len() != each * job.batches.len() {
        let cause = format!("it gave {} logits instead of {}", values.len(), each * job.batches.len());
        return Err(refused(python, cause, "export the network again"));
    }
    let logits = values.chunks_exact(each).map(<[f32]>::to_vec).collect();
    Ok(Found { engine: format!("onnxruntime {onnxruntime} (Python)"), onnx, logits })
}

fn refused(python: &Path, cause: String, remedy: &str) -> RecipeError {
    RecipeError::failure(format!("cannot verify with {}", python.display()), cause, remedy)
}
