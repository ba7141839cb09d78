//! On which side of the host gradients are averaged: decided from what all ranks have said, so that they decide alike.

use burn::backend::Dispatch;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::Wire;
use crate::ddp::communication::Communication;
use crate::ddp::config::{BucketStorage, DdpConfig};
use crate::device_error::DeviceError;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::ops::{Call, CollectiveBackend, Placement, Route};
use crate::transport::DeviceTransport;

/// What a rank says of its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    /// Where its trainable parameters are; `None` where they are on several devices.
    placement: Option<Placement>,
    /// Whether its frozen parameters and running statistics are there too.
    whole: bool,
}

/// What all ranks do.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The device that gradients stay on, and what travels; `None` for buckets in host memory.
    pub(crate) device: Option<(Device, Wire)>,
    /// Whether values are broadcast from device to device.
    pub(crate) broadcasts: bool,
}

impl Candidate {
    /// What this rank says of `model`, whose trainable parameters are on `devices`.
    ///
    /// # Errors
    /// [`Error::EnvironmentInvalid`].
    pub(crate) fn of(model: &impl Module, devices: &[Device], group: &ProcessGroup) -> Result<Self> {
        let Some((first, others)) = devices.split_first() else {
            return Ok(Self::default());
        };
        if others.iter().any(|device| device != first) {
            return Ok(Self::default());
        }
        let call = Call::new(group);
        let placement = Dispatch::group_placement(probe(first).into_dispatch(), call.clone());
        call.result()?;
        Ok(Self { placement: Some(placement), whole: all_floats_on(model, first) })
    }

    fn cuda(&self) -> Option<DeviceTransport> {
        match self.placement {
            Some(Placement::Cuda { transport, .. }) => Some(transport),
            Some(Placement::Host) | None => None,
        }
    }
}

/// What all ranks do, of whom each has said what `candidates` holds. Their models have `synchronized` layers with collectives
/// of their own.
///
/// # Errors
/// [`Error::Device`] where ranks were told to use different transports, or where layers would, on all of them; what making
/// NCCL's communicator returns.
pub(crate) fn choose(
    candidates: &[Candidate],
    synchronized: usize,
    wire: Option<Wire>,
    devices: &[Device],
    config: &DdpConfig,
    group: &ProcessGroup,
) -> Result<Choice> {
    let host = Choice { device: None, broadcasts: false };
    let storage = if wire.is_some() { config.bucket_storage } else { BucketStorage::Host };
    let side = decide(candidates, synchronized, storage).map_err(|error| {
        let (rank, world_size) = (group.rank(), group.world_size());
        Error::Device { rank, world_size, error: error.into() }
    })?;
    let (Some(wire), Some(device)) = (wire, devices.first()) else { return Ok(host) };
    match side {
        Side::Host => return Ok(host),
        Side::HostForDifference { on_gpus, of } => {
            let storage = "gradients are averaged in host memory";
            log::warn!("{storage}: {on_gpus} of {of} ranks have the whole model on one GPU");
            return Ok(host);
        }
        Side::Device => {}
    }
    let call = Call::new(group);
    let route = Dispatch::group_route(probe(device).into_dispatch(), call.clone());
    call.result()?;
    let wire = if route == Route::Alone { Wire::Nothing } else { wire };
    let broadcasts = route == Route::Device && candidates.iter().all(|candidate| candidate.whole);
    Ok(Choice { device: Some((device.clone(), wire)), broadcasts })
}

impl Wire {
    /// What travels for a built-in communication; `None` for one that computes on the host.
    pub(crate) fn of(communication: &Communication) -> Option<Self> {
        match communication {
            Communication::AllReduce => Some(Self::AsTheyAre),
            Communication::F16 => Some(Self::Half(FloatDType::F16)),
            Communication::BF16 => Some(Self::Half(FloatDType::BF16)),
            Communication::PowerSgd(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    /// In host memory, because only some ranks could do otherwise.
    HostForDifference {
        on_gpus: usize,
        of: usize,
    },
    Device,
}

const BY_HOST: &str = "moves its tensors by the host";
const NOT_ON_ONE: &str = "does not have its whole model on one";

/// The first rank of each kind.
struct Kinds {
    /// Whose GPU's tensors NCCL moves.
    by_device: Option<usize>,
    /// Whose GPU's tensors go by the host.
    by_host: Option<usize>,
    /// Without the whole model on one GPU.
    elsewhere: Option<usize>,
}

impl Kinds {
    fn of(candidates: &[Candidate]) -> Self {
        let position = |test: &dyn Fn(Option<DeviceTransport>) -> bool| {
            candidates.iter().position(|candidate| test(candidate.cuda()))
        };
        Self {
            by_device: position(&|cuda| cuda.is_some_and(|transport| transport != DeviceTransport::Host)),
            by_host: position(&|cuda| cuda == Some(DeviceTransport::Host)),
            elsewhere: position(&|cuda| cuda.is_none()),
        }
    }

    /// Refuses layers with collectives of their own where these would go different ways: some ranks would wait in NCCL and
    /// the others on the host, wherever gradients are averaged.
    fn check_layers(&self) -> std::result::Result<(), DeviceError> {
        match (self.by_device, self.by_host, self.elsewhere) {
            (Some(rank), Some(other), _) => Err(differ(rank, other, BY_HOST)),
            (Some(rank), None, Some(other)) => {
                Err(differ(rank, other, &format!("{NOT_ON_ONE}, which synchronized batch norm needs")))
            }
            _ => Ok(()),
        }
    }
}

fn differ(rank: usize, other: usize, found: &str) -> DeviceError {
    DeviceError::DevicesDiffer { rank, other, found: found.into() }
}

/// The side that all ranks take.
fn decide(
    candidates: &[Candidate],
    synchronized: usize,
    storage: BucketStorage,
) -> std::result::Result<Side, DeviceError> {
    let kinds = Kinds::of(candidates);
    if synchronized > 0 {
        kinds.check_layers()?;
    }
    if storage == BucketStorage::Host {
        return Ok(Side::Host);
    }
    let forced = candidates.iter().position(|candidate| candidate.cuda() == Some(DeviceTransport::Nccl));
    let several = candidates.iter().any(|candidate| candidate.placement.is_none());
    match (kinds.by_device, kinds.by_host, kinds.elsewhere) {
        (Some(rank), Some(other), _) => Err(differ(rank, other, BY_HOST)),
        (Some(_), None, None) => Ok(Side::Device),
        (Some(rank), None, Some(other)) => match (forced, storage) {
            (Some(rank), _) => Err(differ(rank, other, NOT_ON_ONE)),
            (None, BucketStorage::Device) => Err(differ(rank, other, NOT_ON_ONE)),
            (None, _) => {
                let on_gpus = candidates.iter().filter(|candidate| candidate.cuda().is_some()).count();
                Ok(Side::HostForDifference { on_gpus, of: candidates.len() })
            }
        },
        (None, _, _) if storage == BucketStorage::Device && !several => Ok(Side::Device),
        (None, _, _) => Ok(Side::Host),
    }
}

/// A tensor that tells which backend a device belongs to.
fn probe(device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(vec![0f32], [1]), &device.clone().without_autodiff())
}

fn all_floats_on(model: &impl Module, device: &Device) -> bool {
    struct Look<'a> {
        device: &'a Device,
        all: bool,
    }
    impl ModuleVisitor for Look<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let here = param.base().device().without_autodiff();
            self.all &= here == self.device.clone().without_autodiff();
        }
    }
    let mut look = Look { device, all: true };
    model.visit(&mut look);
    look.all
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Candidate = Candidate { placement: Some(Placement::Host), whole: true };
    const SPREAD: Candidate = Candidate { placement: None, whole: false };

    fn cuda(transport: DeviceTransport) -> Candidate {
        Candidate { placement: Some(Placement::Cuda { ordinal: 0, transport }), whole: true }
    }

    const AUTO: DeviceTransport = DeviceTransport::Auto;

    #[test]
    fn gradients_stay_on_the_device_where_every_rank_has_its_whole_model_on_a_gpu() {
        let ranks = [cuda(AUTO), cuda(DeviceTransport::Nccl)];
        assert_eq!(decide(&ranks, 0, BucketStorage::Auto).unwrap(), Side::Device);
        assert_eq!(decide(&ranks, 0, BucketStorage::Host).unwrap(), Side::Host);
    }

    #[test]
    fn all_ranks_take_the_host_where_one_has_no_gpu_for_its_whole_model() {
        for other in [HOST, SPREAD] {
            let side = decide(&[cuda(AUTO), other, cuda(AUTO)], 0, BucketStorage::Auto).unwrap();
            assert_eq!(side, Side::HostForDifference { on_gpus: 2, of: 3 });
        }
        assert_eq!(decide(&[HOST, SPREAD], 0, BucketStorage::Auto).unwrap(), Side::Host);
    }

    #[test]
    fn transports_that_were_asked_for_and_exclude_each_other_are_refused_by_rank() {
        let host = cuda(DeviceTransport::Host);
        assert_eq!(decide(&[host, host], 0, BucketStorage::Auto).unwrap(), Side::Host);
        let differ = |ranks: &[Candidate], storage| match decide(ranks, 0, storage).unwrap_err() {
            DeviceError::DevicesDiffer { rank, other, .. } => (rank, other),
            error => panic!("{error}"),
        };
        assert_eq!(differ(&[host, cuda(AUTO)], BucketStorage::Auto), (1, 0));
        assert_eq!(differ(&[HOST, cuda(DeviceTransport::Nccl)], BucketStorage::Auto), (1, 0));
        assert_eq!(differ(&[cuda(AUTO), HOST], BucketStorage::Device), (0, 1));
    }

    #[test]
    fn synchronized_layers_whose_statistics_would_go_different_ways_are_refused_wherever_gradients_go() {
        let host = cuda(DeviceTransport::Host);
        for storage in [BucketStorage::Auto, BucketStorage::Host, BucketStorage::Device] {
            for (other, found) in [(HOST, "does not have"), (SPREAD, "does not have"), (host, "by the host")]
            {
                let refused = decide(&[other, cuda(AUTO), other], 2, storage).unwrap_err();
                assert!(matches!(refused, DeviceError::DevicesDiffer { rank: 1, other: 0, .. }), "{refused}");
                assert!(refused.to_string().contains(found), "{refused}");
            }
        }
        assert_eq!(decide(&[cuda(AUTO); 2], 2, BucketStorage::Auto).unwrap(), Side::Device);
        // All statistics go by the host.
        assert_eq!(decide(&[host, HOST], 2, BucketStorage::Auto).unwrap(), Side::Host);
    }

    #[test]
    fn tensors_of_other_backends_are_kept_as_such_on_request_only() {
        assert_eq!(decide(&[HOST, HOST], 0, BucketStorage::Auto).unwrap(), Side::Host);
        assert_eq!(decide(&[HOST, HOST], 0, BucketStorage::Device).unwrap(), Side::Device);
        assert_eq!(decide(&[HOST, SPREAD], 0, BucketStorage::Device).unwrap(), Side::Host);
    }
}
