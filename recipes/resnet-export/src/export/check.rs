//! Whether an exported file computes what the network does, before it gets its name.

use std::path::Path;

use burn_nccl_inference::{Engine, EngineChoice, EngineOptions, Onnx, load};
use recipe_common::{RecipeError, Result};

use super::surroundings::Surroundings;
use crate::burn_engine::BurnEngine;
use crate::comparison::{BATCHES, Difference, top1};
use crate::engine_options::inference;
use crate::package::{BURN_FILE, MODEL_FILE};
use crate::test_images::random_values;

/// Test images at once.
const BATCH: usize = 8;

/// What was found.
pub(super) struct Checked {
    pub(super) engine: String,
    pub(super) difference: Difference,
    pub(super) accuracy: Option<Accuracy>,
}

/// Test images that were classified as their label says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accuracy {
    pub(super) images: usize,
    by_burn: usize,
    exported: usize,
}

impl Accuracy {
    /// The part that Burn classifies rightly.
    pub(super) fn by_burn(&self) -> f64 {
        self.by_burn as f64 / self.images as f64
    }

    /// The part that the exported file does.
    pub(super) fn exported(&self) -> f64 {
        self.exported as f64 / self.images as f64
    }
}

/// Two engines on the same images.
struct Pair {
    burn: BurnEngine,
    exported: Box<dyn Engine>,
    classes: usize,
    difference: Difference,
    logits: [Vec<f32>; 2],
}

/// Runs the files of `folder`, ONNX by an engine and burnpack by Burn.
///
/// # Errors
/// Where one cannot be run, or they differ by more than `tolerance`, relative to the largest logit.
pub(super) fn check(
    folder: &Path,
    surroundings: &Surroundings,
    (choice, options): (EngineChoice, &EngineOptions),
    tolerance: f64,
) -> Result<Checked> {
    let failed = |error| inference("cannot run the exported file", &error);
    let onnx = Onnx::open(folder.join(MODEL_FILE)).map_err(failed)?;
    let signature = onnx.signature();
    let (image, classes) = (signature.image_values(), signature.classes);
    let exported = load(&onnx, choice, options).map_err(failed)?;
    drop(onnx);
    let burn = BurnEngine::open(&folder.join(BURN_FILE), surroundings.preprocess.input)?;
    let mut pair =
        Pair { burn, exported, classes, difference: Difference::default(), logits: Default::default() };
    let values = random_values(BATCHES.iter().sum::<usize>() * image);
    let mut values = values.as_slice();
    for batch in BATCHES {
        let (images, rest) = values.split_at(batch * image);
        values = rest;
        pair.run(batch, images)?;
    }
    let accuracy = pair.classify(surroundings)?;
    let (engine, difference) = (pair.exported.name(), pair.difference);
    // Written so that a NaN fails.
    if difference.relative() <= tolerance {
        return Ok(Checked { engine, difference, accuracy });
    }
    Err(RecipeError::failure(
        "the exported file does not compute what the network does",
        format!(
            "by {engine}, logits differ from Burn's by {:.1e} of the largest one, and {tolerance:.1e} are allowed",
            difference.relative()
        ),
        "keep --weights f32, choose another --engine to tell the file from the engine, or raise --tolerance",
    ))
}

impl Pair {
    fn run(&mut self, batch: usize, images: &[f32]) -> Result<()> {
        let failed = |error| inference("cannot compare the exported file with Burn", &error);
        let [by_burn, exported] = &mut self.logits;
        self.burn.run(batch, images, by_burn).map_err(failed)?;
        self.exported.run(batch, images, exported).map_err(failed)?;
        self.difference = self.difference.join(Difference::of(by_burn, exported, self.classes));
        Ok(())
    }

    fn classify(&mut self, surroundings: &Surroundings) -> Result<Option<Accuracy>> {
        let Some(images) = &surroundings.images else { return Ok(None) };
        let mut accuracy = Accuracy::default();
        for start in (0..images.len()).step_by(BATCH) {
            let range = start..images.len().min(start + BATCH);
            let prepared = images.prepare(range, &surroundings.preprocess)?;
            self.run(prepared.labels.len(), &prepared.values)?;
            let right = |logits: &[f32]| {
                let rows = logits.chunks_exact(self.classes).zip(&prepared.labels);
                rows.filter(|(logits, label)| top1(logits) == Some(**label)).count()
            };
            let [by_burn, exported] = &self.logits;
            accuracy.by_burn += right(by_burn);
            accuracy.exported += right(exported);
            accuracy.images += prepared.labels.len();
        }
        Ok(Some(accuracy))
    }
}
