//! `bench-worker`: one engine that does what it is told on stdin. Started by `bench`.
//!
//! | order | answer |
//! |---|---|
//! | at the start | `{"name", "load_seconds", "deploy_bytes"}` |
//! | `logits` | `{"logits": [..]}` of the image whose value `i` is `i % 251 / 125.5 - 1` |
//! | `run BATCH SECONDS` | `{"seconds": [..]}` of each run |
//! | `memory` | `{"peak_bytes"}` |
//!
//! What goes wrong is `{"error"}`.

use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn_nccl_inference::{Engine, EngineChoice, EngineKind, EngineOptions, load};
use clap::Args;
use recipe_common::Result;
use recipe_common::metrics::peak_memory_bytes;
use recipe_common::output::print;
use serde_json::{Value, json};

use crate::burn_engine::BurnEngine;
use crate::engine_options::inference;
use crate::package::{BURN_FILE, Package};

/// Runs one engine by orders on stdin.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    from: PathBuf,
    /// Burn where it is left out.
    #[arg(long)]
    engine: Option<EngineChoice>,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    onnxruntime: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match serve(options) {
        Ok(()) => Ok(()),
        // Who reads this is `bench`, which tells it to the user.
        Err(error) => answer(&json!({ "error": format!("{}: {}", error.what, error.cause) })),
    }
}

fn serve(options: &Options) -> Result<()> {
    let start = Instant::now();
    let (mut engine, image) = engine(options)?;
    answer(&json!({
        "name": engine.name(),
        "load_seconds": start.elapsed().as_secs_f64(),
        "deploy_bytes": deploy_bytes(options),
    }))?;
    let mut logits = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
        let mut run = |images: &[f32], batch| {
            engine
                .run(batch, images, &mut logits)
                .map_err(|error| inference("cannot run the network", &error))
        };
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["logits"] => {
                run(&images(1, image), 1)?;
                answer(&json!({ "logits": logits }))?;
            }
            ["run", batch, seconds] => {
                let batch: usize = batch.parse().unwrap_or(1);
                let limit = Duration::try_from_secs_f64(seconds.parse().unwrap_or(0.0)).unwrap_or_default();
                let images = images(batch, image);
                run(&images, batch)?;
                answer(&json!({ "seconds": timed(limit, || run(&images, batch))? }))?;
            }
            ["memory"] => answer(&json!({ "peak_bytes": peak_memory_bytes().unwrap_or_default() }))?,
            _ => answer(&json!({ "error": format!("unknown order `{line}`") }))?,
        }
    }
    Ok(())
}

/// The engine, and the number of values of an image.
fn engine(options: &Options) -> Result<(Box<dyn Engine>, usize)> {
    // The folder was checked by `bench`; here its weights are not to be read once more than a deployment does.
    let package = Package::open(&options.from)?;
    let image = package.onnx.signature().image_values();
    let engine: Box<dyn Engine> = match options.engine {
        None => {
            let input = package.preprocess.input;
            // Not to count as memory that Burn needs.
            drop(package);
            Box::new(BurnEngine::open(&options.from.join(BURN_FILE), input)?)
        }
        Some(choice) => {
            let mut engine_options = EngineOptions::default().with_threads(options.threads);
            engine_options.onnxruntime = options.onnxruntime.clone();
            load(&package.onnx, choice, &engine_options)
                .map_err(|error| inference("cannot load the network", &error))?
        }
    };
    Ok((engine, image))
}

/// Seconds of each call until `limit`; one at least.
fn timed(limit: Duration, mut run: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let (begin, mut seconds) = (Instant::now(), Vec::new());
    while seconds.is_empty() || begin.elapsed() < limit {
        let start = Instant::now();
        run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

fn images(batch: usize, image: usize) -> Vec<f32> {
    let one: Vec<f32> = (0..image).map(|i| (i % 251) as f32 / 125.5 - 1.0).collect();
    one.repeat(batch)
}

/// This program, and the library of ONNX Runtime where it is used.
fn deploy_bytes(options: &Options) -> u64 {
    let size = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let program = std::env::current_exe().map_or(0, |path| size(&path));
    let library = match options.engine {
        Some(EngineChoice::Only(EngineKind::OnnxRuntime)) => loaded_library().map_or(0, |path| size(&path)),
        _ => 0,
    };
    program + library
}

/// The library of ONNX Runtime that this process has mapped.
fn loaded_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("libonnxruntime")))?;
    Some(path.into())
}

fn answer(value: &Value) -> Result<()> {
    print(&format!("{value}\n"))
}
