//! ResNet-18 with batch norm over every rank's own batch or over all.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_nccl::{DdpConfig, DistributedDataParallel, Error};
use burn_nccl_models::{Depth, NormConfig, ResNet, ResNetConfig, Stem};
use serde::{Deserialize, Serialize};

use crate::data::noise;
use crate::fingerprint::sha256;
use crate::model::fill;
use crate::report::Trained;
use crate::training::{Backend, LEARNING_RATE, Precision, criterion, device, group, optimizer, take_step};

const IMAGE: [usize; 4] = [4, 3, 16, 16];
const TIMEOUT_SECONDS: u64 = 60;
/// So small that the backward pass launches buckets between the collectives of the norm layers.
const BUCKET_BYTES: usize = 1 << 20;

/// A training of a ResNet-18.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResNetTraining {
    /// Whose batches are normalised together.
    pub norm: NormConfig,
    /// How many steps.
    pub steps: usize,
    /// The type of parameters and data.
    pub precision: Precision,
    /// A rank that leaves the last norm's collective out.
    pub skipping_rank: Option<usize>,
}

impl ResNetTraining {
    /// In f32 and with nothing wrong.
    pub fn new(norm: NormConfig, steps: usize) -> Self {
        Self { norm, steps, precision: Precision::Single, skipping_rank: None }
    }

    /// Trains as one of the ranks that the environment tells of and gives all ranks rank 0's running statistics.
    ///
    /// # Errors
    /// What the group or data-parallel training returns.
    pub fn by_ranks(&self) -> Result<Trained, Error> {
        let device = device(Backend::Flex, self.precision);
        let group = group(TIMEOUT_SECONDS)?;
        let model = self.model(group.rank() as u64, &device);
        let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &Self::ddp())?;
        if self.skipping_rank == Some(group.rank()) {
            let last = &mut model.layer4[1];
            last.bn2 = last.bn2.clone().without_group();
        }
        let start = sha256(&model);
        let (criterion, mut optimizer) = (criterion(&device), optimizer());
        for step in 0..self.steps {
            let (images, labels) = batch(step, group.rank(), &device);
            model = take_step(model, &mut ddp, &mut optimizer, |model| {
                criterion.forward(model.forward(images), labels)
            })?;
        }
        let model = ddp.sync_buffers(model)?;
        Ok(Trained::new(&model, start))
    }

    /// Trains as one process on what `ranks` ranks together would see.
    pub fn joined(&self, ranks: usize) -> Trained {
        let device = device(Backend::Flex, self.precision);
        let mut model = self.model(0, &device);
        let start = sha256(&model);
        let (criterion, mut optimizer) = (criterion(&device), optimizer());
        for step in 0..self.steps {
            let (images, labels) = (0..ranks).map(|rank| batch(step, rank, &device)).unzip();
            let loss = criterion.forward(model.forward(Tensor::cat(images, 0)), Tensor::cat(labels, 0));
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        // Running statistics are kept one update behind.
        drop(model.valid());
        Trained::new(&model, start)
    }

    pub(crate) fn model(&self, seed: u64, device: &Device) -> ResNet {
        fill(
            ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).with_norm(self.norm).init(device),
            seed,
        )
    }

    pub(crate) fn ddp() -> DdpConfig {
        DdpConfig::new().with_bucket_bytes(BUCKET_BYTES)
    }

    pub(crate) fn batch(step: usize, rank: usize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        batch(step, rank, device)
    }
}

fn batch(step: usize, rank: usize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let count = IMAGE.iter().product::<usize>() as u64;
    let first = (step * 8 + rank) as u64 * count;
    let values: Vec<f64> = (0..count).map(|i| noise(first + i)).collect();
    let labels = [0, 1, 2, 3].map(|row| (step as i32 + 3 * rank as i32 + row) % 10);
    let labels = Tensor::from_ints(labels, device);
    (Tensor::from_data(TensorData::new(values, IMAGE), device), labels)
}
