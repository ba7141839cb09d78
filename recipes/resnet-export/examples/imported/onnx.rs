//! Back to ONNX, and whether a file computes what the network computes.

use std::error::Error;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_nccl_datasets::Loader;
use burn_nccl_inference::{EngineChoice, EngineKind, EngineOptions, Onnx, load};
use burn_onnx::export::{AxisSpec, InputSpec, OnnxExporter};

use super::digits::SIDE;
use super::model::Model;

/// The network in ONNX, for any number of images, as it is for evaluation.
///
/// The exporter runs the network twice, with different numbers of images, to see what depends on it.
pub(crate) fn export(model: &Model) -> Result<Onnx, Box<dyn Error>> {
    // Clones of a module share their running statistics, and the exporter moves those of its clone to a device that ends
    // with it. `valid()` gives a network with its own.
    let model = model.valid();
    let images = |batch: usize| Tensor::<4>::zeros([batch, 3, SIDE, SIDE], &Device::flex());
    let spec =
        InputSpec::new([AxisSpec::dynamic("batch"), AxisSpec::Static, AxisSpec::Static, AxisSpec::Static]);
    let exported =
        OnnxExporter::new().export_dynamic(&model, images(2), images(3), &[spec], Model::forward)?;
    Ok(Onnx::from_bytes(exported.as_bytes())?)
}

/// The largest difference between the logits of the file, by tract, and those of the network, over the batches of
/// `images`; relative to the largest logit.
pub(crate) fn largest_difference(onnx: &Onnx, model: &Model, images: &Loader) -> Result<f32, Box<dyn Error>> {
    let mut engine = load(onnx, EngineChoice::Only(EngineKind::Tract), &EngineOptions::default())?;
    let (mut theirs, mut difference, mut size) = (Vec::new(), 0.0, 0.0);
    for batch in images.epoch(0) {
        let images = batch?.images;
        let [count, ..] = images.dims();
        engine.run(count, &images.to_data().try_to_vec::<f32>()?, &mut theirs)?;
        let ours = model.forward(images).into_data().try_to_vec::<f32>()?;
        if ours.len() != theirs.len() {
            return Err(format!("the file gives {} logits, the network {}", theirs.len(), ours.len()).into());
        }
        difference = largest(difference, ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs));
        size = largest(size, ours.iter().copied());
    }
    Ok(difference / size)
}

/// The largest of `values` without their signs and of `so_far`; what is no number counts as the largest.
fn largest(so_far: f32, values: impl Iterator<Item = f32>) -> f32 {
    values.map(f32::abs).fold(so_far, |largest, value| if value <= largest { largest } else { value })
}
