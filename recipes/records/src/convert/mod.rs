//! `convert`: any format into any other.

mod architecture;
mod container;
mod names;
mod target;

use std::path::PathBuf;

use burn::tensor::DType;
use burn_nccl_models::{ResNet, ResNetConfig};
use burn_nccl_records::{
    Architecture, Error, LoadOptions, Names, SaveOptions, SaveReport, Source, StoredDType, load_source,
    save_model, save_tensors,
};
use clap::Args;
use recipe_common::device::DeviceChoice;
use recipe_common::error::ErrorKind;
use recipe_common::{RecipeError, Result};

use crate::output::{print, size};
use crate::source::{Input, open, records};
use names::Route;
use target::{Dtype, Target, TargetOptions};

/// Convert a file of weights into another format, float type or size.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// The new file; with --shard-mb, the folder of the shards.
    to: PathBuf,
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    architecture: architecture::Options,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let target = options.target.resolve(&options.to)?;
    let source = open(&options.input)?;
    let config = architecture::find(&options.architecture, &source, &options.input.path)?;
    let found = names::of(&source);
    let route =
        names::route(target, found, config.is_some()).ok_or_else(|| needs_network(options, target))?;
    // The network also checks what a copy would only hand on.
    let network = config.as_ref().map(|config| load(options, &source, config)).transpose()?;
    let report = match (&config, &network, route) {
        (Some(config), Some(network), Route::Translate) => {
            let names = if target == Target::Torch { Names::Torch } else { Names::Burn };
            let save_options = with_metadata(options.target.save_options(target, names), &source);
            save_model(config, network, &options.to, &save_options)
        }
        _ => {
            let save_options = with_metadata(options.target.save_options(target, found), &source);
            let save_options = architecture::describe(save_options, config.as_ref());
            save_tensors(
                container::tensors(&source, options.target.dtype, target),
                &options.to,
                &save_options,
            )
        }
    };
    tell(&report.map_err(|error| not_written(options, &error))?)
}

/// The network with the weights of the file.
fn load(options: &Options, source: &Source, config: &ResNetConfig) -> Result<ResNet> {
    let device = DeviceChoice::Cpu.select(0, 1).or_else(|_| DeviceChoice::Auto.select(0, 1))?.device;
    let dtype = match options.target.dtype {
        Some(Dtype::F32) => StoredDType::To(DType::F32),
        _ => StoredDType::File,
    };
    let load_options = LoadOptions::default().with_open(options.input.options()).with_dtype(dtype);
    let network = Architecture::init(config, &device);
    load_source(&network, source, &load_options).map(|(network, _)| network).map_err(|error| {
        let what = format!(
            "{} is not a {} with {} classes",
            options.input.path.display(),
            config.depth,
            config.num_classes
        );
        match &error {
            Error::Mismatch { report, .. } => {
                RecipeError::failure(what, report.to_string(), "check --model, --classes and --stem")
            }
            error => records(what, error),
        }
    })
}

/// `options` with the text of the old file, except what says how that one was written.
fn with_metadata(options: SaveOptions, source: &Source) -> SaveOptions {
    let kept = source
        .metadata()
        .iter()
        .filter(|(key, _)| !["format", "producer", names::NAMES_KEY].contains(&key.as_str()));
    kept.fold(options, |options, (key, value)| options.with_metadata(key, value))
}

fn needs_network(options: &Options, target: Target) -> RecipeError {
    let (theirs, ours) =
        if target == Target::Torch { ("Burn's", "PyTorch's") } else { ("PyTorch's", "Burn's") };
    let other = if target == Target::Torch { "" } else { ", or keep the names with --to safetensors" };
    RecipeError::usage(
        format!("cannot convert {}", options.input.path.display()),
        format!("it has {theirs} names and layouts, and only the network tells {ours}"),
        format!("give --model, such as --model resnet50{other}"),
    )
}

fn not_written(options: &Options, error: &Error) -> RecipeError {
    let what = format!("cannot write {}", options.to.display());
    let refused = records(&what, error);
    let remedy = match error {
        Error::Exists { .. } => "choose another name, or replace it with --overwrite",
        Error::Overflow { .. } => "use --dtype bf16, or leave --dtype out",
        Error::SaveOptions { .. }
        | Error::NotAFile { .. }
        | Error::NotAFolder { .. }
        | Error::CompressionLevel { .. } => &refused.remedy,
        _ => return refused,
    };
    let kind = if matches!(error, Error::Overflow { .. }) { ErrorKind::Failure } else { ErrorKind::Usage };
    RecipeError { kind, remedy: remedy.into(), ..refused.clone() }
}

fn tell(report: &SaveReport) -> Result<()> {
    let rounded = match report.largest_error {
        0.0 => String::new(),
        error => format!(", largest rounding error {error:.1e}"),
    };
    let what = match report.files.as_slice() {
        [file] => file.display().to_string(),
        files => format!("{} files, the last {}", files.len(), files[files.len() - 1].display()),
    };
    print(&format!("wrote {what}: {}, {} tensors{rounded}\n", size(report.bytes), report.tensors))
}
