//! `classify`: the classes of pictures.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use recipe_common::metrics::Memory;
use recipe_common::{RecipeError, Result};
use serde::Serialize;
use serde_json::json;

use crate::bundle::open_package;
use crate::classifier::{Classifier, Prediction};
use crate::engine_options::{EngineArgs, inference};
use crate::package::Package;
use crate::picture::Preparation;
use crate::process::age_seconds;

/// Pixels of a picture; decoding takes up to 12 bytes for each.
const MAX_PIXELS: u64 = 100_000_000;
/// Bytes of a file.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Classify JPEG and PNG files.
///
/// A file that cannot be classified is told on stderr, the others are classified all the same, and the exit code is 1.
#[derive(Args)]
pub(crate) struct Options {
    /// JPEG and PNG files.
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The folder that `export` wrote; a program made by `bundle` has one of its own.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Show this many classes of each image, the most probable first.
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
    /// Print one JSON object a line and image.
    #[arg(long)]
    json: bool,
    /// Tell the engine, the time to start and the peak memory on stderr.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    image: String,
    predictions: &'a [Prediction],
    engine: &'a str,
    milliseconds: f64,
    peak_memory_bytes: Option<u64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let package = open_package(options.from.as_deref())?;
    let mut classifier = Classifier::new(&package, options.engine.engine, &options.engine.options())
        .map_err(|error| inference("the network cannot be loaded", &error))?;
    let Package { onnx, preprocess, place, .. } = package;
    // The engine has its own copy of the weights.
    drop(onnx);
    let mut preparation = Preparation::new(preprocess, MAX_PIXELS);
    let engine = classifier.engine();
    if options.verbose {
        let age = age_seconds().map_or_else(|| "unknown".into(), |seconds| format!("{seconds:.2}"));
        eprintln!("network {}, engine {engine}, ready after {age} s", plain(&place));
    }
    let mut failed = 0;
    for path in &options.images {
        let began = Instant::now();
        let classified = classify(path, &mut preparation, &mut classifier, options.top.into());
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        match classified {
            Ok(predictions) => show(options, path, &predictions, &engine, milliseconds)?,
            Err(error) => {
                failed += 1;
                show_error(options, path, &error)?;
            }
        }
    }
    if options.verbose {
        eprintln!("peak memory {}", Memory::now().peak_text());
    }
    if failed == 0 {
        return Ok(());
    }
    let what = format!("{failed} of {} images were not classified", options.images.len());
    Err(RecipeError::failure(what, "see the errors above", "mend or leave out those files"))
}

fn classify(
    path: &Path,
    preparation: &mut Preparation,
    classifier: &mut Classifier,
    top: usize,
) -> Result<Vec<Prediction>> {
    let what = || format!("cannot classify {}", plain(path));
    let unreadable = |error: std::io::Error| {
        RecipeError::failure(
            what(),
            error.to_string(),
            "check that the file exists and that this user may read it",
        )
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let cause = format!("the file has more than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(RecipeError::failure(what(), cause, "make the image smaller"));
    }
    let values = preparation.prepare(&bytes).map_err(|error| {
        let (cause, remedy) = error.cause_and_remedy();
        RecipeError::failure(what(), cause, remedy)
    })?;
    let mut rows = classifier.classify(1, &values, top).map_err(|error| inference(what(), &error))?;
    let predictions = rows.pop().unwrap_or_default();
    if predictions.iter().any(|prediction| !prediction.probability.is_finite()) {
        let cause = "the network's result is not a number";
        return Err(RecipeError::failure(what(), cause, "run `verify` on the exported folder"));
    }
    Ok(predictions)
}

fn show(
    options: &Options,
    path: &Path,
    predictions: &[Prediction],
    engine: &str,
    milliseconds: f64,
) -> Result<()> {
    if options.json {
        let image = path.display().to_string();
        let peak_memory_bytes = Memory::now().peak;
        let line = Line { image, predictions, engine, milliseconds, peak_memory_bytes };
        let text = serde_json::to_string(&line).map_err(|error| {
            RecipeError::failure("cannot print the classes", error.to_string(), "report it")
        })?;
        return print(&text);
    }
    let class = |found: &Prediction| format!("{} {:.1}%", found.label, f64::from(found.probability) * 100.0);
    let classes: Vec<String> = predictions.iter().map(class).collect();
    print(&format!("{}: {}", plain(path), classes.join(", ")))
}

fn show_error(options: &Options, path: &Path, error: &RecipeError) -> Result<()> {
    eprintln!("{}", error.lines());
    if !options.json {
        return Ok(());
    }
    let image = path.display().to_string();
    print(&json!({ "image": image, "error": error.cause, "help": error.remedy }).to_string())
}

/// A pipe that is closed, as `head` does, is no reason for a panic.
fn print(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| RecipeError::failure("cannot print the classes", error.to_string(), "check stdout"))
}

/// A path without the characters that would move a terminal's cursor.
fn plain(path: &Path) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    path.display().to_string().chars().map(escape).collect()
}
