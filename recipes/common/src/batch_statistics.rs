//! Whether a batch is large enough to be normalised with its own statistics.

use burn_nccl_models::Stem;

use crate::config::RunConfig;
use crate::error::{RecipeError, Result};
use crate::options::Norm;

/// Images whose values are normalised together, whose they are, and how there can be more.
fn normalised_together(config: &RunConfig, world_size: usize) -> (usize, &'static str, &'static str) {
    let larger = "a larger --batch-size";
    match config.norm() {
        Norm::SyncBatch => (config.batch_size * world_size, " of all ranks", larger),
        Norm::Batch if world_size > 1 => {
            (config.batch_size, " of each rank", "--norm sync-batch or a larger --batch-size")
        }
        Norm::Batch => (config.batch_size, "", larger),
    }
}

/// Refuses a batch of one image that the last stage sees as one pixel: normalised, a single value is zero.
pub(crate) fn check_statistics(config: &RunConfig, world_size: usize) -> Result<()> {
    let (images, _, _) = normalised_together(config, world_size);
    let remedy = match config.norm() {
        Norm::Batch if world_size > 1 => "use --batch-size 2 or more, or --norm sync-batch",
        Norm::Batch | Norm::SyncBatch => "use --batch-size 2 or more",
    };
    let halvings = match config.stem {
        Stem::Cifar => 3,
        Stem::ImageNet => 5,
    };
    if images > 1 || config.image_size > 1 << halvings {
        return Ok(());
    }
    Err(RecipeError::failure(
        "cannot train on one image at a time",
        "its last feature map has one pixel, and batch normalisation of one value per channel leaves nothing of it",
        remedy,
    ))
}

/// Images below which the mean and variance of a batch are too noisy to normalise with.
///
/// Source: Wu and He, "Group Normalization" (arXiv:1803.08494), figure 1: the error of batch normalisation grows
/// fast below 16 images per worker.
const SMALL_BATCH: usize = 16;

/// What to say of batch statistics from few images. Accumulation does not help: a forward pass sees one batch.
pub(crate) fn small_batch_warning(config: &RunConfig, world_size: usize) -> Option<String> {
    let (images, whose, remedy) = normalised_together(config, world_size);
    (images < SMALL_BATCH).then(|| {
        format!(
            "batch normalisation sees {images} images{whose} at a time, and statistics of fewer than {SMALL_BATCH} \
             cost accuracy: use {remedy}"
        )
    })
}
