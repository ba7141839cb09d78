//! An exported network with all that a deployment needs: what `export` writes and the other commands read.

mod files;
mod labels;
mod preprocess;

use std::path::{Path, PathBuf};

use burn_nccl_inference::Onnx;
use burn_nccl_records::Manifest;
use recipe_common::{RecipeError, Result};
use serde::{Deserialize, Serialize};

pub(crate) use self::files::{
    BURN_FILE, DEPLOYED, FILES, LABELS_FILE, MODEL_FILE, PREPROCESS_FILE, WEIGHTS_FILE, check_files,
    read_at_most, read_manifest,
};
use self::files::{described, read_described};
pub(crate) use self::labels::{parse_labels, write_labels};
pub(crate) use self::preprocess::{MAX_SIDE, Preprocess};

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
    /// The images of the run, such as `cifar10:PATH`; none where they are not known.
    #[serde(default)]
    pub(crate) data: Option<String>,
    /// Hash of the exported parameters, as in a run's summary.json.
    pub(crate) parameters_sha256: String,
    /// Largest difference of the exported file's logits from Burn's when it was written, relative to the largest logit.
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

/// The contents of the files that a deployment needs.
#[derive(Clone, Copy)]
pub(crate) struct PackageBytes<'a> {
    pub(crate) model: &'a [u8],
    pub(crate) labels: &'a [u8],
    pub(crate) preprocess: &'a [u8],
    pub(crate) manifest: &'a [u8],
}

impl PackageBytes<'_> {
    fn files(&self) -> [(&'static str, &[u8]); 3] {
        [(MODEL_FILE, self.model), (LABELS_FILE, self.labels), (PREPROCESS_FILE, self.preprocess)]
    }
}

impl Package {
    /// Opens the folder, if the files that a deployment needs are exactly what its manifest says: each is read once. The
    /// weights for others, which may have been left out, are not looked at.
    ///
    /// # Errors
    /// Where a file is missing, altered, too large, or does not fit the others; each one is named.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let needed = [MODEL_FILE, LABELS_FILE, PREPROCESS_FILE];
        let manifest = read_manifest(folder, &needed)?;
        for (name, limit) in DEPLOYED {
            let bytes = described(&manifest, name).map_or(0, |file| file.bytes);
            if bytes > limit {
                let cause = format!("{name} has {bytes} bytes, and {limit} are allowed");
                return Err(unusable(folder, cause, "export the network again"));
            }
        }
        let read = |name: &str| described(&manifest, name).and_then(|file| read_described(folder, file));
        let [Some(model), Some(labels), Some(preprocess)] = needed.map(read) else {
            // Says what is wrong with each.
            check_files(folder, &manifest, |name| needed.contains(&name))?;
            return Err(unusable(folder, "its files changed while they were read", "try again"));
        };
        let contents = Contents { model: &model, labels: &labels, preprocess: &preprocess };
        contents.into_package(&manifest, folder)
    }

    /// Opens the bytes of its four files, none of which is larger than [`DEPLOYED`] allows. For a bundle.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn from_bytes(files: PackageBytes<'_>, place: &Path) -> Result<Self> {
        let damaged = |cause: String| unusable(place, cause, "make the bundle again");
        let manifest: Manifest = serde_json::from_slice(files.manifest)
            .map_err(|error| damaged(format!("its manifest: {error}")))?;
        for (name, bytes) in files.files() {
            let expected = described(&manifest, name)
                .ok_or_else(|| damaged(format!("its manifest does not describe {name}")))?;
            if !expected.describes(bytes) {
                return Err(damaged(format!("{name} is not what its manifest says")));
            }
        }
        let PackageBytes { model, labels, preprocess, .. } = files;
        Contents { model, labels, preprocess }.into_package(&manifest, place)
    }
}

/// Files that are what their manifest says.
struct Contents<'a> {
    model: &'a [u8],
    labels: &'a [u8],
    preprocess: &'a [u8],
}

impl Contents<'_> {
    /// Reads the files and compares them with each other.
    fn into_package(self, manifest: &Manifest, place: &Path) -> Result<Package> {
        let wrong = |name: &str, why: String| {
            unusable(place, format!("{name}: {why}"), "export the network again; its files belong together")
        };
        let info: ExportInfo = serde_json::from_value(manifest.metrics.clone().into())
            .map_err(|error| wrong(Manifest::FILE_NAME, error.to_string()))?;
        let onnx = Onnx::from_bytes(self.model).map_err(|error| wrong(MODEL_FILE, error.to_string()))?;
        let signature = onnx.signature();
        let labels = std::str::from_utf8(self.labels)
            .map_err(|error| wrong(LABELS_FILE, error.to_string()))
            .and_then(|text| {
                parse_labels(text, signature.classes).map_err(|error| wrong(LABELS_FILE, error.cause))
            })?;
        let preprocess: Preprocess = serde_json::from_slice(self.preprocess)
            .map_err(|error| wrong(PREPROCESS_FILE, error.to_string()))?;
        let input = [signature.channels, signature.height, signature.width];
        if preprocess.input != input || input.iter().any(|&side| side > MAX_SIDE) {
            let why = format!("it prepares {:?} and the network takes {input:?}", preprocess.input);
            return Err(wrong(PREPROCESS_FILE, why));
        }
        preprocess.check().map_err(|why| wrong(PREPROCESS_FILE, why))?;
        Ok(Package { onnx, labels, preprocess, info, place: place.into() })
    }
}

fn unusable(place: &Path, cause: impl Into<String>, remedy: &str) -> RecipeError {
    RecipeError::failure(format!("{} cannot be used as an export", place.display()), cause, remedy)
}
