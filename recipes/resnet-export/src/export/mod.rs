//! `export`: from a checkpoint to a folder with all that a deployment needs.

mod check;
mod network;
mod onnx;
mod parameters;
mod place;
mod run_settings;
mod staging;
mod surroundings;

use std::path::{Path, PathBuf};

use burn_nccl_inference::{Onnx, WeightType};
use burn_nccl_models::{ResNet, ResNetConfig};
use burn_nccl_records::{Manifest, Names, SaveFormat, SaveOptions, save, save_model};
use clap::Args;
use recipe_common::output::{print, size};
use recipe_common::parameters::parameters_sha256;
use recipe_common::{RecipeError, Result};

use self::check::{Checked, check};
use self::network::{Found, NetworkOptions};
use self::onnx::{OPSET, to_onnx};
use self::staging::Staging;
use self::surroundings::{DataOptions, Surroundings};
use crate::comparison;
use crate::engine_options::{EngineArgs, inference};
use crate::package::{
    BURN_FILE, ExportInfo, FILES, LABELS_FILE, MODEL_FILE, PREPROCESS_FILE, WEIGHTS_FILE, write_labels,
};

/// What the exported network's input and output are called.
const INPUT: &str = "images";
const OUTPUT: &str = "logits";

/// Export a trained network to a folder: model.onnx and the same weights as model.safetensors (torchvision's names) and
/// model.bpk, the names of the classes, the preparation of images, and manifest.json with hashes, versions and accuracy.
///
/// The folder appears whole, and after its network has been run against Burn; or not at all.
#[derive(Args)]
pub(crate) struct Options {
    /// A run folder, a checkpoint, a self-describing .bpk or .safetensors file, or bare weights of any format with --model
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Replace an export that is there already
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    network: NetworkOptions,
    #[command(flatten)]
    data: DataOptions,
    /// How the weights are stored: f32, f16 (half the size) or int8 (a quarter, one scale per channel)
    #[arg(long, value_name = "TYPE", default_value_t)]
    weights: WeightType,
    /// Keep batch normalisations as they are, instead of folding them into the convolutions
    #[arg(long)]
    no_fold: bool,
    /// Largest difference from Burn's logits, in parts of the largest one [default: 1e-4, with f16 1e-2, with int8 0.2]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tolerance: Option<f64>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Reads a tolerance. An infinite one would allow logits that are no numbers.
pub(crate) fn tolerance(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|value: &f64| *value >= 0.0 && value.is_finite())
        .ok_or_else(|| "use a finite number of at least 0".to_owned())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // With a `/` at its end the name of a link would mean what is behind it, and that cannot be replaced by name.
    let to: PathBuf = options.to.components().collect();
    let found = network::find(&options.from, &options.network)?;
    let surroundings = Surroundings::find(&options.data, &found.run, &found.config)?;
    staging::clean(&to);
    staging::check(&to, options.overwrite)?;
    let network = found.load()?;
    let Found { config, .. } = found;
    print(&format!(
        "read {}: {} with the {} stem, {} classes, {:.1} million parameters\n",
        options.from.display(),
        config.depth,
        config.stem,
        config.num_classes,
        network.parameters_count() as f64 / 1e6
    ))?;
    let staging = Staging::create(&to, options.overwrite)?;
    let manifest = write(options, &config, network, &surroundings, &staging)?;
    staging.publish()?;
    let sizes: Vec<_> =
        manifest.files.iter().map(|file| format!("{} {}", file.name, size(file.bytes))).collect();
    print(&format!("wrote {}: {}\n", options.to.display(), sizes.join(", ")))
}

/// Writes and checks all files.
fn write(
    options: &Options,
    config: &ResNetConfig,
    network: ResNet,
    surroundings: &Surroundings,
    staging: &Staging,
) -> Result<Manifest> {
    let parameters_sha256 = parameters_sha256(&network);
    write_weights(config, &network, staging.path(), &options.to)?;
    staging.write(LABELS_FILE, write_labels(&surroundings.labels)?.as_bytes())?;
    let preprocess = serde_json::to_vec_pretty(&surroundings.preprocess)
        .map_err(|error| RecipeError::file("write", &options.to.join(PREPROCESS_FILE), error))?;
    staging.write(PREPROCESS_FILE, &preprocess)?;
    let (onnx, folded) = make_onnx(options, network, surroundings.preprocess.input)?;
    staging.write(MODEL_FILE, &onnx)?;
    drop(onnx);
    let tolerance = options.tolerance.unwrap_or(comparison::tolerance(options.weights));
    let engine = (options.engine.engine, &options.engine.options());
    let checked = check(staging.path(), surroundings, engine, tolerance)?;
    tell(&checked, tolerance)?;
    let info = ExportInfo {
        architecture: serde_json::to_value(config)
            .map_err(|error| RecipeError::file("describe the network in", &options.to, error))?,
        opset: OPSET.version() as u32,
        weights: options.weights.name().into(),
        folded_batch_norms: folded,
        exported_from: options.from.display().to_string(),
        data: surroundings.data.as_ref().map(ToString::to_string),
        parameters_sha256,
        largest_difference: checked.difference.relative(),
        test_accuracy: checked.accuracy.map(|accuracy| accuracy.by_burn()),
        exported_test_accuracy: checked.accuracy.map(|accuracy| accuracy.exported()),
        test_examples: checked.accuracy.map(|accuracy| accuracy.images),
    };
    write_manifest(&info, staging.path(), &options.to)
}

/// The same weights for PyTorch and for Burn.
fn write_weights(config: &ResNetConfig, network: &ResNet, folder: &Path, to: &Path) -> Result<()> {
    let failed = |name: &str| {
        let what = format!("cannot write {}", to.join(name).display());
        move |error| RecipeError::records(what, error)
    };
    let torch = SaveOptions::default()
        .with_format(SaveFormat::Safetensors)
        .with_names(Names::Torch)
        .with_architecture(config);
    save(network, folder.join(WEIGHTS_FILE), &torch).map_err(failed(WEIGHTS_FILE))?;
    save_model(config, network, folder.join(BURN_FILE), &SaveOptions::default())
        .map_err(failed(BURN_FILE))?;
    Ok(())
}

/// The bytes of `model.onnx`, and how many batch normalisations were folded.
fn make_onnx(options: &Options, network: ResNet, input: [usize; 3]) -> Result<(Vec<u8>, usize)> {
    let exported = to_onnx(&network, input, ResNet::forward);
    drop(network);
    let bytes =
        exported.map_err(|error| RecipeError::from_text("cannot export the network", &error.to_string()))?;
    let failed = |error| inference("cannot export the network", &error);
    let mut onnx = Onnx::from_bytes(&bytes).map_err(failed)?;
    drop(bytes);
    onnx.rename(INPUT, OUTPUT).map_err(failed)?;
    onnx.fold_reshapes();
    let folded = if options.no_fold { 0 } else { onnx.fold_batch_norms().map_err(failed)? };
    onnx.set_weights(options.weights).map_err(failed)?;
    print(&format!(
        "exported to ONNX (opset {}): {folded} batch normalisations folded, {} weights\n",
        OPSET.version(),
        options.weights
    ))?;
    Ok((onnx.to_bytes(), folded))
}

fn tell(checked: &Checked, tolerance: f64) -> Result<()> {
    let Checked { engine, difference, accuracy } = checked;
    print(&format!(
        "compared {engine} with Burn on {} images: logits differ by {:.1e} of the largest one ({tolerance:.0e} are \
         allowed), the class of {} is the same\n",
        difference.images,
        difference.relative(),
        difference.agreeing,
    ))?;
    let Some(accuracy) = accuracy else { return Ok(()) };
    print(&format!(
        "accuracy on {} test images: {:.2}% by Burn, {:.2}% exported\n",
        accuracy.images,
        accuracy.by_burn() * 100.0,
        accuracy.exported() * 100.0
    ))
}

fn write_manifest(info: &ExportInfo, folder: &Path, to: &Path) -> Result<Manifest> {
    let failed = |error| RecipeError::records(format!("cannot describe {}", to.display()), error);
    let metrics = match serde_json::to_value(info) {
        Ok(serde_json::Value::Object(metrics)) => metrics,
        other => unreachable!("a struct of plain data is an object: {other:?}"),
    };
    let manifest = Manifest::describe(folder, &FILES).map_err(failed)?.with_metrics(metrics);
    manifest.write(folder).map_err(failed)?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_a_finite_number_of_at_least_0() {
        assert_eq!([tolerance("0"), tolerance("1e-4")], [Ok(0.0), Ok(1e-4)]);
        // The last one is more than a number of 64 bits can tell.
        for text in ["inf", "infinity", "+inf", "NaN", "-1", "-inf", "", "much", "1e999"] {
            assert!(tolerance(text).is_err(), "{text}");
        }
    }
}
