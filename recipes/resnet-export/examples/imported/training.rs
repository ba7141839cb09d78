//! Fine-tuning of all parameters, by one process or several.

use std::error::Error;

use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn_nccl::{DdpConfig, DistributedDataParallel, ProcessGroup};
use burn_nccl_datasets::Split;

use super::digits::{self, Score, Tally, cross_entropy};
use super::model::Model;

/// Of Adam.
const LEARNING_RATE: f64 = 0.002;

/// Trains `model` on the digits and tells `report` of each epoch, how the images were classified as they were met.
///
/// Each rank of `group` trains on its share; a process that no launcher has started is the only rank. The network that
/// comes back is the same on all ranks.
pub(crate) fn fine_tune(
    model: Model,
    epochs: usize,
    group: &ProcessGroup,
    device: &Device,
    mut report: impl FnMut(usize, Score),
) -> Result<Model, Box<dyn Error>> {
    let (mut ddp, mut model) = DistributedDataParallel::new(model, group, &DdpConfig::new())?;
    let images = digits::loader(Split::Train, device, group.rank(), group.world_size())?;
    let mut optimizer = AdamConfig::new().init();
    for epoch in 0..epochs {
        let mut tally = Tally::default();
        for batch in images.epoch(epoch) {
            let batch = batch?;
            let logits = ddp.hook(&model)?.forward(batch.images);
            let loss = cross_entropy(&logits, &batch.labels);
            let gradients = ddp.backward(&loss, &model)?;
            tally.add(&loss, logits, batch.labels);
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        report(epoch + 1, tally.score());
    }
    // Each rank's running statistics are of its own images; all go on with rank 0's.
    Ok(ddp.sync_buffers(model)?)
}
