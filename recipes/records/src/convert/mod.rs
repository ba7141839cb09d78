//! `convert`: any format into any other.

mod architecture;
mod container;
mod target;

use std::path::PathBuf;

use burn::tensor::DType;
use burn_nccl_models::{ResNet, ResNetConfig};
use burn_nccl_records::{
    Architecture, Error, Format, LoadDType, LoadOptions, Names, SaveOptions, SaveReport, Source, load_source,
    save_model, save_tensors,
};
use clap::Args;
use recipe_common::device::DeviceChoice;
use recipe_common::error::ErrorKind;
use recipe_common::{RecipeError, Result};

use crate::source::{Input, open, records};
use recipe_common::output::{print, size};
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
    architecture: architecture::NetworkOptions,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let target = options.target.resolve(&options.to)?;
    let source = open(&options.input)?;
    let found = source.names();
    let translates = target.names(found) != found;
    let config = architecture::find(&options.architecture, &source, &options.input.path, translates)?;
    // Also where names stay: the network checks what a copy would only hand on.
    let network = config.as_ref().map(|config| load(options, &source, config)).transpose()?;
    let found = network.as_ref().map_or(found, |(_, names)| *names);
    let wanted = target.names(found);
    let save_options = with_metadata(options.target.save_options(target, wanted), &source);
    let report = match (&config, &network) {
        _ if wanted == found => {
            let save_options = match &config {
                Some(config) => save_options.with_architecture(config),
                None => save_options,
            };
            save_tensors(
                container::tensors(&source, options.target.dtype, target),
                &options.to,
                &save_options,
            )
        }
        (Some(config), Some((network, _))) => save_model(config, network, &options.to, &save_options),
        _ => return Err(needs_network(options, target)),
    };
    tell(&report.map_err(|error| not_written(options, &error))?)
}

/// The network with the weights of the file, and whose names the file has.
fn load(options: &Options, source: &Source, config: &ResNetConfig) -> Result<(ResNet, Names)> {
    let device = DeviceChoice::Cpu.select(0, 1).or_else(|_| DeviceChoice::Auto.select(0, 1))?.device;
    let dtype = match options.target.dtype {
        Some(Dtype::F32) => LoadDType::To(DType::F32),
        _ => LoadDType::File,
    };
    let load_options = LoadOptions::default().with_open(options.input.options()).with_dtype(dtype);
    let network = Architecture::init(config, &device);
    let (network, report) = load_source(&network, source, &load_options).map_err(|error| {
        let path = options.input.path.display();
        let what = format!("{path} is not a {} with {} classes", config.depth, config.num_classes);
        match &error {
            Error::Mismatch { report, .. } => {
                // The last line names options of the library.
                let text = report.to_string();
                let cause = text.rsplit_once('\n').map_or(text.as_str(), |(lists, _)| lists);
                RecipeError::failure(what, cause, "check --model, --classes and --stem")
            }
            error => records(what, error),
        }
    })?;
    Ok((network, report.names))
}

/// `options` with the text of the old file, except what says how that one was written.
fn with_metadata(options: SaveOptions, source: &Source) -> SaveOptions {
    let of_file = ["format", "producer"];
    // What a PyTorch file has there is the key of the dictionary that was taken.
    let kept = source
        .metadata()
        .iter()
        .filter(|(key, _)| source.format() != Format::Pytorch && !of_file.contains(&key.as_str()));
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
    let usage =
        |remedy: &str| RecipeError { kind: ErrorKind::Usage, remedy: remedy.into(), ..refused.clone() };
    match error {
        Error::Exists { .. } => usage("choose another name, or replace it with --overwrite"),
        Error::SaveOptions { .. } => usage("leave one of these options out"),
        Error::NotAFile { .. } | Error::NotAFolder { .. } | Error::CompressionLevel { .. } => {
            usage(&refused.remedy)
        }
        Error::Overflow { .. } => {
            RecipeError { remedy: "use --dtype bf16, or leave --dtype out".into(), ..refused }
        }
        _ => refused,
    }
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
