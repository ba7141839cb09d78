//! `all-reduce`: every transport of one machine beside torch.distributed.

mod results;
mod tables;

use std::path::{Path, PathBuf};

use clap::Args;
use recipe_common::Result;

use self::results::Results;
use crate::engine::{Measured, Variant};
use crate::sides::{Sides, Transport};
use crate::size::Size;
use recipe_common::machine::Machine;
use recipe_common::output::{check_writable, print, save};

/// Time an all-reduce (sum, f32) on every transport of this machine, beside torch.distributed with gloo.
///
/// All sides run in turn, so that they see the same machine. Prints medians, and medians of the rounds' ratios, as
/// Markdown.
#[derive(Args)]
pub(crate) struct Options {
    /// Ranks, each a process on this machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: u16,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Transport::All)]
    transport: Transport,
    /// Buffer sizes, with commas between them.
    #[arg(long, value_delimiter = ',', default_value = "1KB,64KB,1MB,26MB,102MB")]
    sizes: Vec<Size>,
    /// How many times all sides are measured, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The Python of an environment with torch, whose gloo is measured in the same run.
    #[arg(long, value_name = "PATH")]
    peer_python: Option<PathBuf>,
    /// Write all numbers to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to this file too.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let files = [options.json.as_deref(), options.markdown.as_deref()];
    files.into_iter().try_for_each(check_writable)?;
    let results = measure(options)?;
    save(options.json.as_deref(), || results.json())?;
    let tables = tables::markdown(&results);
    save(options.markdown.as_deref(), || tables.clone())?;
    print(&tables)
}

fn measure(options: &Options) -> Result<Results> {
    let mut variants = options.transport.variants()?;
    let peer_python: Option<&Path> = options.peer_python.as_deref();
    variants.extend(peer_python.map(|_| Variant::Gloo));
    let ranks = usize::from(options.ranks);
    let mut sides = Sides::start(&variants, ranks, peer_python)?;
    let mut results = Results::new(Machine::this(), ranks, usize::from(options.rounds));
    results.memory_bandwidth = sides.memory_bandwidth()?;
    for round in 0..options.rounds {
        for size in &options.sizes {
            for index in 0..variants.len() {
                // Nobody is always the first, nor always behind the same other.
                let index = if round % 2 == 0 { index } else { variants.len() - 1 - index };
                let variant = variants[index];
                let ranks = sides.all_reduce(variant, size.0)?;
                let (seconds, cpu) = (Measured::slowest(&ranks), Measured::cpu_per_rank(&ranks));
                results.add(variant.name(), size.0, seconds, cpu);
            }
        }
    }
    Ok(results)
}
