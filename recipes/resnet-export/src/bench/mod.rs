//! `bench`: the engines beside each other, and beside Python's.

mod child;
pub(crate) mod client;
pub(crate) mod load;
mod peer;
mod results;
mod service;
mod side;
mod subject;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use recipe_common::machine::Machine;
use recipe_common::output::{check_writable, print, save};
use recipe_common::{RecipeError, Result};

use self::child::{Child, Measured};
use self::results::{Results, Row};
use self::side::Side;
use self::subject::Subject;
use crate::comparison::Difference;

/// Latency of one image, images a second, memory and size of every engine, in turn, on the same network.
///
/// Without --from it is a ResNet-50 at 224 x 224 with random weights.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder of an export.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// How many threads compute: each engine has a row for each number.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Rounds; in each every engine is measured once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of an engine in a round.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Images in a batch where images a second are measured.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch_size: u16,
    /// The library of ONNX Runtime, or a folder that has it.
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// A Python with torch, torchvision, safetensors and onnxruntime, to measure those as well.
    #[arg(long, value_name = "PATH")]
    peer_python: Option<PathBuf>,
    /// Measure the HTTP service too: this many clients at once, each of which waits for its answer.
    #[arg(long, value_name = "CLIENTS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    serve: Option<u16>,
    /// Writes the table to a file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes all numbers of all rounds to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    check_writable(options.markdown.as_deref())?;
    check_writable(options.json.as_deref())?;
    let subject = Subject::prepare(options.from.as_deref())?;
    let sides = side::all(
        &options.threads,
        options.peer_python.as_deref(),
        options.onnxruntime.as_deref(),
        subject.folder(),
    );
    let mut results = Results::new(Machine::this(), subject.describe(), options);
    let mut children = start(&sides, subject.folder(), &mut results)?;
    agree(&mut children, subject.tolerance())?;
    measure(&mut children, options)?;
    for (side, child, measured) in children {
        results.rows.push(Row::new(&side, &child, measured));
    }
    if let Some(clients) = options.serve {
        results.service = Some(service::measure(&subject, clients.into(), options)?);
    }
    results.conclude();
    let table = results.to_string();
    print(&table)?;
    save(options.markdown.as_deref(), || table)?;
    save(options.json.as_deref(), || serde_json::to_string_pretty(&results).expect("numbers and text") + "\n")
}

/// Starts a process for each side; a side that this machine lacks is noted.
fn start(sides: &[Side], folder: &Path, results: &mut Results) -> Result<Vec<(Side, Child, Measured)>> {
    let mut children = Vec::new();
    for side in sides {
        match Child::start(side, folder) {
            Ok(child) => children.push((side.clone(), child, Measured::default())),
            Err(reason) if side.is_wanted() => return Err(failed(side, &reason)),
            Err(reason) => results.absent(side, &reason),
        }
    }
    Ok(children)
}

/// Refuses to compare what does not compute the same.
fn agree(children: &mut [(Side, Child, Measured)], tolerance: f64) -> Result<()> {
    let mut reference: Option<(&Side, Vec<f32>)> = None;
    for (side, child, _) in children {
        let side: &Side = side;
        let logits = child.logits().map_err(|reason| failed(side, &reason))?;
        let (first, reference) = reference.get_or_insert_with(|| (side, logits.clone()));
        let apart = Difference::of(reference, &logits, logits.len()).relative();
        if apart > tolerance {
            let reason = format!("its logits are {apart:.1e} of the largest one away from those of {first}");
            return Err(failed(side, &reason));
        }
    }
    Ok(())
}

/// In each round every side once, forwards in one round and backwards in the next; then the same with whole batches.
fn measure(children: &mut [(Side, Child, Measured)], options: &Options) -> Result<()> {
    let duration = Duration::from_secs_f64(options.seconds);
    let batch = usize::from(options.batch_size);
    for size in [1, batch] {
        for round in 0..options.rounds {
            let mut turn: Vec<_> = children.iter_mut().collect();
            if round % 2 == 1 {
                turn.reverse();
            }
            for (side, child, measured) in turn {
                let seconds = child.run(size, duration).map_err(|reason| failed(side, &reason))?;
                if size == 1 { &mut measured.latency } else { &mut measured.batches }.push(seconds);
            }
        }
        // The memory that a service of single images needs.
        for (side, child, measured) in children.iter_mut().filter(|_| size == 1) {
            measured.peak_bytes = child.peak_bytes().map_err(|reason| failed(side, &reason))?;
        }
        if batch == 1 {
            break;
        }
    }
    Ok(())
}

fn failed(side: &Side, reason: &str) -> RecipeError {
    RecipeError::failure(format!("cannot measure {side}"), reason, side.remedy())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}` is no number of seconds between 0.001 and 600: use one such as 1")),
    }
}
