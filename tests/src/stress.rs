//! Many steps with copies of the module all over the place.

use burn::module::Module;
use burn_nccl::{DdpConfig, DistributedDataParallel, Error};

use crate::data::batch;
use crate::fingerprint::sha256;
use crate::model::{Net, SmallNet};
use crate::report::Trained;
use crate::training::{Backend, Precision, criterion, device, group, optimizer, take_step};

const TIMEOUT_SECONDS: u64 = 60;

/// Trains `steps` steps on forks and clones of the model, with an evaluation by a copy and a micro-batch now and then.
///
/// # Errors
/// What the group or data-parallel training returns.
pub fn train(steps: usize) -> Result<Trained, Error> {
    let device = device(Backend::Flex, Precision::Single);
    let group = group(TIMEOUT_SECONDS)?;
    let rank = group.rank();
    let model = SmallNet::new(Net::Plain, rank as u64, &device);
    let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &DdpConfig::new())?;
    let start = sha256(&model);
    let (criterion, mut optimizer) = (criterion(&device), optimizer());
    let mut kept = Vec::new();
    for step in 0..steps {
        kept.push(model.clone());
        if kept.len() > 3 {
            kept.remove(0);
        }
        model = model.fork(&device);
        let (images, labels) = batch(step, rank, &device);
        if step % 3 == 0 {
            // A gradient outside of data-parallel training, on a copy that shares its values with the model.
            let copy = kept[0].clone().fork(&device);
            drop(criterion.forward(copy.forward(images.clone(), false), labels.clone()).backward());
        }
        if step % 5 == 0 {
            let hooked = ddp.hook(&model)?;
            ddp.no_sync(&criterion.forward(hooked.forward(images.clone(), false), labels.clone()))?;
        }
        if step % 7 == 0 {
            drop(model.valid().forward(images.clone().inner(), false).into_data());
        }
        model = take_step(model, &mut ddp, &mut optimizer, |model| {
            criterion.forward(model.clone().forward(images, false), labels)
        })?;
    }
    Ok(Trained::new(&model, start))
}
