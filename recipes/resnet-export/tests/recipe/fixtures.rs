//! Networks to export, and ways to run what comes out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl_inference::{Engine, EngineChoice, EngineKind, EngineOptions, Onnx, load};
use burn_nccl_models::{Depth, ResNet, ResNetConfig, Stem};
use burn_nccl_records::{SaveOptions, load_model, save_model};
use clap::Parser;
use recipe_common::{TrainOptions, command_line, single};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use super::support::skip;

/// The Python that tests compare with.
pub(crate) fn python(test: &str) -> Option<OsString> {
    let python = std::env::var_os("BURN_NCCL_PYTHON");
    if python.is_none() {
        skip(test, "set BURN_NCCL_PYTHON to a Python with torchvision, onnx and onnxruntime");
    }
    python
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn command(folder: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-export"));
    command.args(args.split_whitespace()).current_dir(folder);
    command
}

pub(crate) fn recipe(folder: &Path, args: &str) -> Output {
    command(folder, args).output().unwrap()
}

/// What it prints where it succeeds.
pub(crate) fn succeeds(folder: &Path, args: &str) -> String {
    let output = recipe(folder, args);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{args}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

/// Its error, cause and remedy, where it ends with this exit code.
pub(crate) fn refuses(folder: &Path, args: &str, exit_code: i32) -> [String; 3] {
    let output = recipe(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit_code), "{args}: {stderr}");
    assert!(!stderr.contains("panicked"), "{args}: {stderr}");
    ["error: ", "cause: ", "help:  "].map(|label| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("{args}: no {label:?} in {stderr}")).to_owned()
    })
}

/// Exports `model.bpk` of [`network`] to `out`, for the bundled digits at 32 pixels.
pub(crate) fn export(folder: &Path, more: &str) -> String {
    let args = "export --from model.bpk --to out --data digits --image-size 32 --test-images 8";
    succeeds(folder, &format!("{args} {more}"))
}

/// Weights as after a training, every one of them of consequence: fresh normalisations are the identity.
struct Trained;

impl ModuleMapper for Trained {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.shape();
        if shape.num_dims() != 1 {
            return param;
        }
        // Gamma, beta, mean, variance and the classifier's bias: all of them positive, since a variance is.
        let values = (0..shape.num_elements()).map(|index| 0.8 + 0.3 * (index as f32 * 0.7).sin());
        let data = TensorData::new(values.collect::<Vec<_>>(), shape);
        param.map(|tensor| Tensor::from_data(data, &tensor.device()))
    }
}

/// Writes `model.bpk` with a network that has been made and not trained.
pub(crate) fn network(folder: &Path, depth: Depth, classes: usize) -> ResNet {
    let config = ResNetConfig::new(depth, classes).with_stem(Stem::Cifar);
    let network = config.init(&Device::flex()).materialize().map(&mut Trained);
    save_model(&config, &network, folder.join("model.bpk"), &SaveOptions::default()).unwrap();
    network
}

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    train: TrainOptions,
}

/// A run of two steps on the digits at 8 pixels, whose folder has two checkpoints and the final weights.
pub(crate) static RUN: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = folder();
    let mut args = "recipe --device cpu --model resnet18 --progress none --batch-size 8 --max-steps 2 \
                    --checkpoint-steps 1 --keep-last 2"
        .split_whitespace()
        .map(OsString::from)
        .collect::<Vec<_>>();
    args.extend(["--out".into(), folder.path().join("run").into_os_string()]);
    let options: Options = command_line::parse(args).unwrap();
    single::run("resnet-single", &options.train).unwrap();
    folder
});

pub(crate) fn manifest(export: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(export.join("manifest.json")).unwrap()).unwrap()
}

/// `count` images of `size` pixels with values of about -1 to 1.
pub(crate) fn images(count: usize, size: usize) -> Vec<f32> {
    (0..count * 3 * size * size)
        .map(|index| (index as f32 * 0.37).sin() + (index as f32 * 0.011).cos() * 0.5)
        .collect()
}

/// The logits of an exported file by tract, which reads it by itself.
pub(crate) fn by_tract(export: &Path, batch: usize, images: &[f32]) -> Vec<f32> {
    tract(export)(batch, images)
}

pub(crate) fn tract(export: &Path) -> impl FnMut(usize, &[f32]) -> Vec<f32> {
    let onnx = Onnx::open(export.join("model.onnx")).unwrap();
    let options = EngineOptions::default().with_threads(1);
    let mut engine = load(&onnx, EngineChoice::Only(EngineKind::Tract), &options).unwrap();
    move |batch, images| run(engine.as_mut(), batch, images)
}

fn run(engine: &mut dyn Engine, batch: usize, images: &[f32]) -> Vec<f32> {
    let mut logits = Vec::new();
    engine.run(batch, images, &mut logits).unwrap();
    logits
}

/// The logits of Burn.
pub(crate) fn by_burn(file: &Path, batch: usize, size: usize, images: &[f32]) -> Vec<f32> {
    let device = Device::flex();
    let (_, network) = load_model::<ResNetConfig>(file, &device).unwrap();
    let images = Tensor::<4>::from_data(TensorData::new(images.to_vec(), [batch, 3, size, size]), &device);
    network.forward(images).into_data().try_to_vec().unwrap()
}

/// The largest difference in parts of the largest value.
pub(crate) fn relative(expected: &[f32], found: &[f32]) -> f64 {
    assert_eq!(expected.len(), found.len());
    let largest = expected.iter().fold(0f64, |largest, value| largest.max(f64::from(value.abs())));
    let apart = expected.iter().zip(found).map(|(a, b)| f64::from(a - b).abs());
    apart.fold(0f64, |most, apart| if apart > most || apart.is_nan() { apart } else { most }) / largest
}

/// What is in a folder, hidden files too.
pub(crate) fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A program of the workspace that was built beside this recipe.
pub(crate) fn sibling(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_recipe-resnet-export")).with_file_name(name);
    path.is_file().then_some(path)
}
