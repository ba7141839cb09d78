//! Back to ONNX, and whether a file computes what the network computes.

use std::error::Error;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_nccl_datasets::Loader;
use burn_nccl_inference::{EngineChoice, EngineKind, EngineOptions, Onnx, load};
use burn_onnx::export::{AxisSpec, InputSpec, OnnxExporter};

use super::digits::SIDE;
use super::model::Model;

/// The network in ONNX, for any number of images; `model` must be in evaluation mode, as `valid()` gives it.
///
/// The exporter runs the network twice, with different numbers of images, to see what depends on it.
pub(crate) fn export(model: &Model) -> Result<Onnx, Box<dyn Error>> {
    let device = model.devices().into_iter().next().unwrap_or_default();
    let images = |batch: usize| Tensor::<4>::zeros([batch, 3, SIDE, SIDE], &device);
    let spec =
        InputSpec::new([AxisSpec::dynamic("batch"), AxisSpec::Static, AxisSpec::Static, AxisSpec::Static]);
    let exported =
        OnnxExporter::new().export_dynamic(model, images(2), images(3), &[spec], Model::forward)?;
    Ok(Onnx::from_bytes(exported.as_bytes())?)
}

/// The largest difference between the logits of the file, by tract, and those of the network, over the batches of
/// `images`.
pub(crate) fn largest_difference(onnx: &Onnx, model: &Model, images: &Loader) -> Result<f32, Box<dyn Error>> {
    let mut engine = load(onnx, EngineChoice::Only(EngineKind::Tract), &EngineOptions::default())?;
    let (mut logits, mut largest) = (Vec::new(), 0.0f32);
    for batch in images.epoch(0) {
        let images = batch?.images;
        let [count, ..] = images.dims();
        engine.run(count, &images.to_data().try_to_vec::<f32>()?, &mut logits)?;
        let ours = model.forward(images).into_data().try_to_vec::<f32>()?;
        assert_eq!(ours.len(), logits.len(), "the file has other classes than the network");
        // `max` alone would leave out a difference that is not a number.
        let differences = ours.iter().zip(&logits).map(|(ours, theirs)| (ours - theirs).abs());
        largest = differences.fold(largest, |largest, next| if next <= largest { largest } else { next });
    }
    Ok(largest)
}
