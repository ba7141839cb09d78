//! What is decided once, before training, and alike on all ranks: that they have one model, where its gradients are averaged,
//! and how they are cut into buckets.

use std::sync::Arc;

use burn::module::Module;

use super::bucket::{self, BucketPlan, DEVICE_ALIGNMENT_BYTES, GradientSize, HOST_ALIGNMENT_BYTES};
use super::communication::{CommunicationHook, Communicator};
use super::config::{BucketStorage, DdpConfig};
use super::layout::layouts;
use super::lift::{self, Lifts};
use super::parameters::{self, Trainable};
use super::reducer::Reducer;
use super::replicate::{self, Covered};
use super::storage::{self, Candidate, HostStorage, Storage, TensorStorage, Wire};
use crate::dtype::wire_dtype;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::sync_batch_norm;

/// What a training loop's handle is made of.
pub(super) struct Prepared {
    pub(super) reducer: Arc<Reducer>,
    pub(super) lifts: Lifts,
    /// Never `Auto`.
    pub(super) bucket_storage: BucketStorage,
    /// Whether values go from device to device.
    pub(super) broadcasts: bool,
}

/// Compares the models, gives all ranks rank 0's values, and plans the buckets. `wire` is what the communication sends from
/// devices, if it can.
///
/// # Errors
/// Those of [`DistributedDataParallel::new`](super::DistributedDataParallel::new).
pub(super) fn prepare<M: Module>(
    model: M,
    group: &ProcessGroup,
    config: &DdpConfig,
    hook: Box<dyn CommunicationHook>,
    wire: Option<Wire>,
) -> Result<(Prepared, M)> {
    let (model, synchronized) = sync_batch_norm::connect_and_count(model, group);
    let (all, trainable) = parameters::list(&model);
    let devices: Vec<_> = trainable.iter().map(|parameter| parameter.device.clone()).collect();
    let candidate = Candidate::of(&model, &devices, group).inspect_err(|error| {
        // The others are on their way into the comparison.
        group.abort(&format!("rank {} cannot go on: {error}", group.rank()));
    })?;
    let candidates = replicate::check_same_model(&all, synchronized, config, hook.name(), candidate, group)?;
    check_options(synchronized, config, &*hook, wire, group)?;
    if trainable.is_empty() {
        return Err(Error::NothingToTrain);
    }
    let choice = storage::choose(&candidates, synchronized, wire, &devices, config, group)?;
    let (bucket_storage, alignment) = match choice.device {
        Some(_) => (BucketStorage::Device, DEVICE_ALIGNMENT_BYTES),
        None => (BucketStorage::Host, HOST_ALIGNMENT_BYTES),
    };
    let plan = plan(&trainable, config, alignment)?;
    let communicator = Arc::new(Communicator::new(hook, layouts(&plan, &trainable), group)?);
    let storage: Box<dyn Storage> = match choice.device {
        Some((device, wire)) => Box::new(TensorStorage::new(group, plan.clone(), wire, device)),
        None => Box::new(HostStorage::new(group, plan.clone(), communicator.clone())),
    };
    let broadcasts = choice.broadcasts;
    let model = replicate::broadcast(model, Covered::All, broadcasts, group)?;
    let depths = if config.overlap { lift::depths(&plan) } else { vec![0; plan.buckets.len()] };
    let lifts = Lifts::new(&depths, &devices);
    let names = trainable.into_iter().map(|parameter| parameter.name).collect();
    let reducer = Arc::new(Reducer::new(group, plan, names, communicator, storage, config));
    Ok((Prepared { reducer, lifts, bucket_storage, broadcasts }, model))
}

/// Refuses options that exclude each other. All ranks have the same, so all refuse them.
fn check_options(
    synchronized: usize,
    config: &DdpConfig,
    hook: &dyn CommunicationHook,
    wire: Option<Wire>,
    group: &ProcessGroup,
) -> Result<()> {
    if synchronized > 0 && group.world_size() > 1 {
        config.check_synchronized_layers()?;
    }
    if config.bucket_storage == BucketStorage::Device && wire.is_none() {
        let reason = "it computes in host memory; set DdpConfig::bucket_storage to BucketStorage::Auto";
        return Err(Error::CommunicationHookRefused { hook: hook.name(), reason: reason.into() });
    }
    Ok(())
}

fn plan(trainable: &[Trainable], config: &DdpConfig, alignment_bytes: usize) -> Result<Arc<BucketPlan>> {
    let size = |parameter: &Trainable| {
        let elements = parameter.shape.iter().product();
        Ok(GradientSize { dtype: wire_dtype(parameter.dtype)?, elements })
    };
    let sizes = trainable.iter().map(size).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(bucket::plan(&sizes, config.first_bucket_bytes, config.bucket_bytes, alignment_bytes)))
}
