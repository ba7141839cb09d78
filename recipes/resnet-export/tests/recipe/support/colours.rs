//! A package whose answers are known by formula.

use std::fs;
use std::path::Path;

use burn_nccl_records::Manifest;
use serde_json::json;
use tempfile::TempDir;

use super::onnx::{Net, int};

/// Of the class whose logit is 10 times the mean of its colour, where all else is `others`.
pub(crate) fn probability(colour: [u8; 3], class: usize) -> f64 {
    let exponential = |value: u8| (10.0 * f64::from(value) / 255.0).exp();
    exponential(colour[class]) / colour.into_iter().map(exponential).sum::<f64>()
}

/// A package of three classes, red, green and blue, for pictures of 8 by 8: the logits are 10 times the mean of each
/// colour.
pub(crate) fn package() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), ["red", "green", "blue"]);
    folder
}

/// The same with other names.
pub(crate) fn write(folder: &Path, labels: [&str; 3]) {
    fs::write(folder.join("model.onnx"), model()).unwrap();
    fs::write(folder.join("labels.txt"), labels.map(|label| format!("{label}\n")).concat()).unwrap();
    let preprocess =
        json!({ "input": [3, 8, 8], "transforms": [{ "resize": { "height": 8, "width": 8 } }, "to_rgb"] });
    fs::write(folder.join("preprocess.json"), preprocess.to_string()).unwrap();
    let info = json!({
        "architecture": { "depth": "colours" },
        "opset": 18,
        "weights": "f32",
        "folded_batch_norms": 0,
        "exported_from": "a test",
        "parameters_sha256": "",
        "largest_difference": 0.0,
        "test_accuracy": null,
        "exported_test_accuracy": null,
        "test_examples": null,
    });
    let manifest = Manifest::describe(folder, &["model.onnx", "labels.txt", "preprocess.json"]).unwrap();
    manifest.with_metrics(info.as_object().unwrap().clone()).write(folder).unwrap();
}

fn model() -> Vec<u8> {
    let mut net = Net::new(3, 8, 8);
    let weights: Vec<f32> = (0..9).map(|index| if index % 4 == 0 { 10.0 } else { 0.0 }).collect();
    net.constant("conv.weight", &[3, 3, 1, 1], &weights);
    let conv = net.node("Conv", &["input", "conv.weight"], vec![]);
    let pooled = net.node("GlobalAveragePool", &[&conv], vec![]);
    let output = net.node("Flatten", &[&pooled], vec![int("axis", 1)]);
    net.output(&output, 3);
    net.bytes()
}
