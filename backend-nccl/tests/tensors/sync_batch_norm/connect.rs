//! Which layers of a model synchronise.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use burn_nccl::ddp::{DdpConfig, DistributedDataParallel, UnevenInputs, UnusedParameters};
use burn_nccl::{Error, ProcessGroup, SyncBatchNorm, SyncBatchNormConfig, sync_batch_norm};

use crate::on_ranks;

/// A layer that may synchronise between two that train.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: Option<SyncBatchNorm>,
    last: Vec<Linear>,
}

impl Net {
    fn new(synchronized: bool, device: &Device) -> Self {
        let config = SyncBatchNormConfig::new(8).with_synchronized(synchronized);
        Self {
            first: LinearConfig::new(4, 8).init(device),
            norm: Some(config.init(device)),
            last: vec![LinearConfig::new(8, 2).init(device)],
        }
    }

    fn group(&self) -> Option<&ProcessGroup> {
        self.norm.as_ref().and_then(SyncBatchNorm::group)
    }
}

#[test]
fn connecting_reaches_every_layer_that_asks_for_it_and_no_other() {
    let device = Device::flex().autodiff();
    on_ranks(2, |group| {
        let net = sync_batch_norm::connect(Net::new(true, &device), &group);
        assert_eq!(net.group().map(ProcessGroup::world_size), Some(2));
        assert!(Net::new(true, &device).group().is_none(), "the scope is closed again");
        assert!(sync_batch_norm::connect(Net::new(false, &device), &group).group().is_none());
        // A layer keeps the group it has.
        let net = sync_batch_norm::connect(net, &ProcessGroup::single());
        assert_eq!(net.group().map(ProcessGroup::world_size), Some(2));
        assert!(net.norm.unwrap().without_group().group().is_none());
    });
}

#[test]
fn data_parallel_training_connects_synchronized_layers_and_only_those() {
    let device = Device::flex().autodiff();
    for (synchronized, expected) in [(true, Some(2)), (false, None)] {
        for found in on_ranks(2, |group| {
            let net = Net::new(synchronized, &device);
            let (ddp, net) = DistributedDataParallel::new(net, &group, &DdpConfig::new()).unwrap();
            let hooked = ddp.hook(&net).unwrap();
            [&net, &hooked, &net.valid()].map(|net| net.group().map(ProcessGroup::world_size))
        }) {
            assert_eq!(found, [expected; 3]);
        }
    }
}

#[test]
fn options_under_which_a_rank_could_miss_a_collective_are_refused_on_all_ranks() {
    let device = Device::flex().autodiff();
    let allow = DdpConfig::new().with_unused_parameters(UnusedParameters::Allow);
    let cases = [
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::JoinActive), Some("UnevenInputs::JoinActive")),
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::JoinWorld), Some("UnevenInputs::JoinWorld")),
        (DdpConfig::new().with_uneven_inputs(UnevenInputs::Strict), None),
        (allow.clone(), Some("UnusedParameters::Allow with overlap")),
        (allow.with_overlap(false), None),
    ];
    for (config, expected) in cases {
        for synchronized in [true, false] {
            let expected = expected.filter(|_| synchronized);
            for error in on_ranks(2, |group| {
                DistributedDataParallel::new(Net::new(synchronized, &device), &group, &config).err()
            }) {
                match (error, expected) {
                    (None, None) => {}
                    (Some(Error::SyncBatchNormOption { option, .. }), Some(expected)) => {
                        assert_eq!(option, expected)
                    }
                    (error, expected) => panic!("{error:?}, expected {expected:?}"),
                }
            }
        }
    }
}

#[test]
fn ranks_that_disagree_on_what_synchronises_are_told_so() {
    let device = Device::flex().autodiff();
    for error in on_ranks(2, |group| {
        let net = Net::new(group.rank() == 0, &device);
        DistributedDataParallel::new(net, &group, &DdpConfig::new()).err().map(|error| error.to_string())
    }) {
        let text = error.expect("an error");
        assert!(text.contains("rank 0 has 1 synchronized batch norm layers, rank 1 has 0"), "{text}");
    }
}
