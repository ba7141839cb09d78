//! Fine-tunes somebody else's ONNX network on the digits, and exports it to ONNX again. See the README beside this file.
//!
//! ```sh
//! cargo run -p recipe-resnet-export --example imported -- --out digits.onnx
//! ```

mod digits;
mod model;
mod onnx;
mod training;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::Device;
use burn_nccl::ProcessGroup;
use burn_nccl::launch::{LaunchConfig, run};
use burn_nccl_datasets::Split;
use burn_nccl_inference::Onnx;
use burn_nccl_records::write_file;
use clap::Parser;

/// The file that `model.rs` was made from.
const ORIGINAL: &[u8] = include_bytes!("thin_resnet.onnx");
const EPOCHS: usize = 6;
/// Of the new last layer.
const SEED: u64 = 1;
/// How far logits may be apart that should be equal, relative to the largest one.
const TOLERANCE: f32 = 1e-5;

/// Fine-tune an imported network on the bundled digits, and export it.
#[derive(Parser)]
struct Options {
    /// The new ONNX file; without it the network is exported and checked, but not kept.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long)]
    overwrite: bool,
    /// Ranks that train together, each a process of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    nproc: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    // Now, and not after the training.
    if let Some(out) = options.out.as_deref().filter(|out| out.exists() && !options.overwrite) {
        eprintln!("error: {} exists; choose another --out, or replace it with --overwrite", out.display());
        return ExitCode::FAILURE;
    }
    let ended = if options.nproc > 1 { start_ranks(&options) } else { fine_tune(&options) };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn fine_tune(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let group = ProcessGroup::from_environment()?;
    let say = |text: String| {
        if group.rank() == 0 {
            println!("{text}")
        }
    };
    let device = Device::flex().autodiff();
    device.seed(SEED);
    let model = model::load(&device);
    // Rank 0 tests alone, on all images.
    let test = digits::loader(Split::Test, &device.clone().inner(), 0, 1)?;
    let original = Onnx::from_bytes(ORIGINAL)?;
    check("imported network", onnx::largest_difference(&original, &model.valid(), &test)?)?;

    let model = model.with_classes(digits::CLASSES);
    let told =
        |score: digits::Score| format!("loss {:.3}, accuracy {:.1}%", score.loss, 100.0 * score.accuracy);
    say(format!("before     test {}", told(digits::evaluate(&model.valid(), &test)?)));
    let model = training::fine_tune(model, EPOCHS, &group, &device, |epoch, score| {
        say(format!("epoch {epoch}    training {}", told(score)));
    })?
    .valid();
    say(format!("after      test {}", told(digits::evaluate(&model, &test)?)));
    if group.rank() > 0 {
        return Ok(ExitCode::SUCCESS);
    }

    let mut exported = onnx::export(&model)?;
    let folded = exported.fold_batch_norms()?;
    check("exported network", onnx::largest_difference(&exported, &model, &test)?)?;
    println!("{folded} batch norms are folded into convolutions");
    if let Some(out) = &options.out {
        write_file(out, exported.to_bytes(), true, options.overwrite)?;
        println!("wrote {}", out.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares a relative difference of logits with what rounding explains.
fn check(what: &str, difference: f32) -> Result<(), String> {
    println!("{what}: logits by tract and by Burn differ by {difference:.1e} of the largest at most");
    // Not `>`, which a difference that is not a number would pass.
    if difference <= TOLERANCE {
        Ok(())
    } else {
        Err(format!("{what}: {difference} is more than {TOLERANCE}"))
    }
}

/// Runs this program once for each rank, with the same options but `--nproc`.
fn start_ranks(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = LaunchConfig::this_program(options.nproc)?;
    if let Some(out) = &options.out {
        config.args.extend(["--out".into(), out.into()]);
    }
    config.args.extend(options.overwrite.then(|| "--overwrite".into()));
    let outcome = run(&config)?;
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}
