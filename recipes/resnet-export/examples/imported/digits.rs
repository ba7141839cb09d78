//! The images that the network is fine-tuned on, and how well it knows them.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_nccl_datasets::{
    DataError, DataSource, Loader, LoaderConfig, Normalization, Pipeline, Split, Transform,
};

use super::model::Model;

/// Digits.
pub(crate) const CLASSES: usize = 10;
/// Height and width that the network was made for, in pixels.
pub(crate) const SIDE: usize = 32;
/// Images of each step, on each rank.
const BATCH_SIZE: usize = 32;
/// Of the order of the images and of how they are varied.
const SEED: u64 = 1;

/// This rank's share of the digits, prepared as what the network has learned from: three channels, mean 0.5, deviation
/// 0.25.
pub(crate) fn loader(
    split: Split,
    device: &Device,
    rank: usize,
    world_size: usize,
) -> Result<Loader, DataError> {
    let resize = Transform::Resize { height: SIDE, width: SIDE };
    let vary =
        Transform::RandomAffine { max_degrees: 10.0, max_translate: 0.1, min_scale: 0.9, max_scale: 1.1 };
    let normalize = Transform::Normalize(Normalization { mean: vec![0.5; 3], std: vec![0.25; 3] });
    let is_training = split == Split::Train;
    let transforms = match is_training {
        true => Pipeline::new([resize, vary, Transform::ToRgb, normalize]),
        false => Pipeline::new([resize, Transform::ToRgb, normalize]),
    };
    LoaderConfig::new(BATCH_SIZE)
        .with_seed(SEED)
        .with_shuffle(is_training)
        .with_drop_last(is_training)
        .with_rank(rank)
        .with_world_size(world_size)
        .with_transforms(transforms)
        .init(DataSource::Digits.load(split)?, device)
}

/// Loss and accuracy over all images of `images`. On a device without autodiff, as `valid()` gives it, batch norms
/// compute with their running statistics.
pub(crate) fn evaluate(model: &Model, images: &Loader) -> Result<Score, DataError> {
    let mut tally = Tally::default();
    for batch in images.epoch(0) {
        let batch = batch?;
        let logits = model.forward(batch.images);
        tally.add(&cross_entropy(&logits, &batch.labels), logits, batch.labels);
    }
    Ok(tally.score())
}

/// Mean over the batch.
pub(crate) fn cross_entropy(logits: &Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits.clone(), labels.clone())
}

/// How well a network does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    /// Mean cross entropy.
    pub(crate) loss: f64,
    /// Share of the images whose largest logit is that of their class, 0 to 1.
    pub(crate) accuracy: f64,
}

/// Sums over batches.
#[derive(Default)]
pub(crate) struct Tally {
    images: f64,
    loss: f64,
    correct: f64,
}

impl Tally {
    /// Counts one batch.
    pub(crate) fn add(&mut self, loss: &Tensor<1>, logits: Tensor<2>, labels: Tensor<1, Int>) {
        let [images, _] = logits.dims();
        let correct = logits.argmax(1).squeeze_dim::<1>(1).equal(labels).int().sum();
        self.images += images as f64;
        self.loss += loss.clone().into_scalar::<f64>() * images as f64;
        self.correct += correct.into_scalar::<i64>() as f64;
    }

    /// What they come to.
    pub(crate) fn score(&self) -> Score {
        let images = self.images.max(1.0);
        Score { loss: self.loss / images, accuracy: self.correct / images }
    }
}
