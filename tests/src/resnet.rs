//! ResNet-18 with batch norm on every rank's own batch.

use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl::{DdpConfig, DistributedDataParallel, Error};
use burn_nccl_models::{Depth, ResNetConfig, Stem};

use crate::data::noise;
use crate::fingerprint::sha256;
use crate::model::fill;
use crate::report::Trained;
use crate::training::{Backend, Precision, criterion, device, group, optimizer, take_step};

const IMAGE: [usize; 4] = [2, 3, 16, 16];
const TIMEOUT_SECONDS: u64 = 60;

/// Trains `steps` steps and gives all ranks rank 0's running statistics.
///
/// # Errors
/// What the group or data-parallel training returns.
pub fn train(steps: usize) -> Result<Trained, Error> {
    let device = device(Backend::Flex, Precision::Single);
    let group = group(TIMEOUT_SECONDS)?;
    let model = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).init(&device);
    let model = fill(model, group.rank() as u64);
    let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &DdpConfig::new())?;
    let start = sha256(&model);
    let (criterion, mut optimizer) = (criterion(&device), optimizer());
    for step in 0..steps {
        let images = images(step, group.rank(), &device);
        let labels = Tensor::from_ints([step as i32, group.rank() as i32 + 3], &device);
        model = take_step(model, &mut ddp, &mut optimizer, |model| {
            criterion.forward(model.forward(images), labels)
        })?;
    }
    let model = ddp.sync_buffers(model)?;
    Ok(Trained::new(&model, start))
}

fn images(step: usize, rank: usize, device: &Device) -> Tensor<4> {
    let count = IMAGE.iter().product::<usize>() as u64;
    let first = (step * 8 + rank) as u64 * count;
    let values: Vec<f64> = (0..count).map(|i| noise(first + i)).collect();
    Tensor::from_data(TensorData::new(values, IMAGE), device)
}
