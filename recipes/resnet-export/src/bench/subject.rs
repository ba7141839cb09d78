//! The network that is measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use burn_nccl_models::{Depth, ResNetConfig};
use burn_nccl_records::{Architecture, SaveOptions, save_model};
use recipe_common::device::DeviceChoice;
use recipe_common::{RecipeError, Result};
use tempfile::TempDir;

use crate::child_process::{tail, wait};
use crate::comparison;
use crate::package::Package;

/// Where no export is given: the network and the size of images that PyTorch, TorchScript and ONNX Runtime are most often
/// compared on.
const DEPTH: Depth = Depth::ResNet50;
const CLASSES: usize = 1000;
const IMAGE_SIZE: usize = 224;

/// How long its export may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// An export: the user's, or one made for the measurement and removed with this value.
pub(super) struct Subject {
    folder: PathBuf,
    input: [usize; 3],
    tolerance: f64,
    description: String,
    _made: Option<TempDir>,
}

impl Subject {
    /// Checks the export in `folder`, or makes one of a ResNet-50 with random weights.
    ///
    /// # Errors
    /// Where the export is not what its manifest says, or none can be made.
    pub(super) fn prepare(folder: Option<&Path>) -> Result<Self> {
        let (folder, made) = match folder {
            Some(folder) => (folder.to_path_buf(), None),
            None => {
                let made = tempfile::tempdir().map_err(|error| no_sample(error.to_string()))?;
                (make(made.path())?, Some(made))
            }
        };
        let package = Package::open(&folder)?;
        let input @ [channels, height, width] = package.preprocess.input;
        let depth = package.info.architecture["depth"].as_str().unwrap_or("network").to_owned();
        let weights = &package.info.weights;
        // On an image that is none, a little more than what an export is checked by.
        let tolerance = weights.parse().map_or(0.0, comparison::tolerance).max(1e-3);
        let description = format!("{depth}, 1 x {channels} x {height} x {width}, weights in {weights},");
        Ok(Self { folder, input, tolerance, description, _made: made })
    }

    /// Where the export is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Channels, height and width of its images.
    pub(super) fn input(&self) -> [usize; 3] {
        self.input
    }

    /// How far the logits of its engines may be apart, in parts of the largest one.
    pub(super) fn tolerance(&self) -> f64 {
        self.tolerance
    }

    /// The network in words.
    pub(super) fn describe(&self) -> String {
        self.description.clone()
    }
}

/// Exports a network with random weights, by the command that exports any other; returns the export's folder.
fn make(folder: &Path) -> Result<PathBuf> {
    let (model, labels, export) =
        (folder.join("model.bpk"), folder.join("labels.txt"), folder.join("export"));
    let config = ResNetConfig::new(DEPTH, CLASSES);
    let network = Architecture::init(&config, &DeviceChoice::Cpu.select(0, 1)?.device);
    save_model(&config, &network, &model, &SaveOptions::default())
        .map_err(|error| RecipeError::records("cannot make a network to measure", error))?;
    let names: String = (0..CLASSES).map(|class| format!("{class}\n")).collect();
    std::fs::write(&labels, names).map_err(|error| RecipeError::file("write", &labels, error))?;
    let program = std::env::current_exe().map_err(|error| no_sample(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["export", "--image-size", &IMAGE_SIZE.to_string()]);
    command.arg("--from").arg(&model).arg("--labels").arg(&labels).arg("--to").arg(&export);
    let messages = folder.join("messages.txt");
    let file = File::create(&messages).map_err(|error| RecipeError::file("write", &messages, error))?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
    let status = child.and_then(|mut child| wait(&mut child, PATIENCE));
    match status.map_err(|error| no_sample(error.to_string()))? {
        Some(status) if status.success() => Ok(export),
        Some(_) => Err(no_sample(tail(&messages).trim().replace('\n', "; "))),
        None => Err(no_sample(format!("its export did not end within {PATIENCE:.0?}"))),
    }
}

fn no_sample(reason: String) -> RecipeError {
    RecipeError::failure("cannot make a network to measure", reason, "give one with --from")
}
