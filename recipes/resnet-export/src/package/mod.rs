//! An exported network with all that a deployment needs: what `export` writes and the other commands read.

mod labels;
mod preprocess;

use std::path::{Path, PathBuf};

use burn_nccl_inference::Onnx;
use burn_nccl_records::Manifest;
use recipe_common::Result;
use serde::{Deserialize, Serialize};

pub(crate) use self::labels::{parse_labels, write_labels};
pub(crate) use self::preprocess::Preprocess;

pub(crate) const MODEL_FILE: &str = "model.onnx";
pub(crate) const WEIGHTS_FILE: &str = "model.safetensors";
pub(crate) const BURN_FILE: &str = "model.bpk";
pub(crate) const LABELS_FILE: &str = "labels.txt";
pub(crate) const PREPROCESS_FILE: &str = "preprocess.json";

/// What `manifest.json` says of an export beside its files' hashes: the `metrics` of [`Manifest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExportInfo {
    /// The network's config, as in a self-describing file: `{"depth": "resnet18", ...}`.
    pub(crate) architecture: serde_json::Value,
    /// Version of ONNX's operators.
    pub(crate) opset: u32,
    /// `f32`, `f16` or `int8`.
    pub(crate) weights: String,
    /// Batch normalisations that were folded into convolutions.
    pub(crate) folded_batch_norms: usize,
    /// The file or folder that was exported.
    pub(crate) exported_from: String,
    /// Hash of the exported parameters, as in a run's summary.json.
    pub(crate) parameters_sha256: String,
    /// Largest difference of the exported file's logits from Burn's, by the native engine, when it was written.
    pub(crate) largest_difference: f64,
    /// Accuracy on the test images, by Burn before the export; none where there were no images.
    pub(crate) test_accuracy: Option<f64>,
    /// Accuracy of the exported file on the same images.
    pub(crate) exported_test_accuracy: Option<f64>,
    /// Number of those images.
    pub(crate) test_examples: Option<usize>,
}

/// What a deployment needs, in memory and checked.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// The network.
    pub(crate) onnx: Onnx,
    /// A name for each class.
    pub(crate) labels: Vec<String>,
    /// From a picture to the network's input.
    pub(crate) preprocess: Preprocess,
    /// What the export said of itself.
    pub(crate) info: ExportInfo,
    /// Where it came from: a folder, or the program itself.
    pub(crate) place: PathBuf,
}

impl Package {
    /// Opens the folder, if it is exactly what its manifest says.
    ///
    /// # Errors
    /// Where a file is missing, altered, or does not fit the others.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let _ = (folder, Manifest::read(folder).map(|manifest| manifest.verify(folder)));
        todo!("helper C")
    }

    /// Opens the bytes of its four files: model, labels, preprocess, manifest. For a bundle.
    pub(crate) fn from_bytes(files: PackageBytes<'_>, place: &Path) -> Result<Self> {
        let _ = (files, place);
        todo!("helper C")
    }
}

/// The contents of the files that a deployment needs.
#[derive(Clone, Copy)]
pub(crate) struct PackageBytes<'a> {
    pub(crate) model: &'a [u8],
    pub(crate) labels: &'a [u8],
    pub(crate) preprocess: &'a [u8],
    pub(crate) manifest: &'a [u8],
}
