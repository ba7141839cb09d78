//! `show`: what a file of weights holds, without loading it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn_nccl_records::Source;
use clap::Args;
use recipe_common::Result;
use serde::Serialize;

use crate::source::{Input, open};
use recipe_common::output::{columns, harmless, print, size};

/// Print keys, shapes, types and sizes of a file of weights, or of the newest weights of a run folder, without loading
/// them.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let contents = Contents::of(&open(&options.input)?, &options.input);
    print(&if options.json { contents.json() } else { contents.text() })
}

#[derive(Serialize)]
struct Contents {
    path: PathBuf,
    format: &'static str,
    compressed: bool,
    bytes: u64,
    files: Vec<PathBuf>,
    metadata: BTreeMap<String, String>,
    values: u64,
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: u64,
}

impl Contents {
    fn of(source: &Source, input: &Input) -> Self {
        let tensors: Vec<_> = source
            .tensors()
            .iter()
            .map(|tensor| Tensor {
                name: tensor.name().to_owned(),
                dtype: tensor.dtype().name(),
                shape: tensor.shape().to_vec(),
                bytes: tensor.byte_len(),
            })
            .collect();
        Self {
            path: input.path.clone(),
            format: source.format().name(),
            compressed: source.is_compressed(),
            bytes: source.bytes(),
            files: source.files().to_vec(),
            metadata: source.metadata().clone(),
            values: tensors.iter().map(Tensor::values).sum(),
            tensors,
        }
    }

    fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names, numbers and paths are JSON") + "\n"
    }

    fn text(&self) -> String {
        let compressed = if self.compressed { ", compressed with zstd" } else { "" };
        let files =
            if self.files.len() > 1 { format!(" in {} files", self.files.len()) } else { String::new() };
        let mut text = format!(
            "{}: {}{compressed}, {}{files}, {} tensors with {} values\n",
            self.path.display(),
            self.format,
            size(self.bytes),
            self.tensors.len(),
            self.values,
        );
        if !self.metadata.is_empty() {
            let rows = self.metadata.iter().map(|(key, value)| [harmless(key), harmless(value)]);
            text += &format!("\n{}", columns(&rows.collect::<Vec<_>>()));
        }
        let rows = self.tensors.iter().map(|tensor| {
            [harmless(&tensor.name), tensor.dtype.into(), format!("{:?}", tensor.shape), size(tensor.bytes)]
        });
        text + "\n" + &columns(&rows.collect::<Vec<_>>())
    }
}

impl Tensor {
    fn values(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}
