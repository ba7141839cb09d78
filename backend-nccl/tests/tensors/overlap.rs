//! The overlap shown without a clock: in which order things happen.

use std::sync::Arc;

use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_nccl::ddp::{DdpEvent, DistributedDataParallel, EventLog};
use burn_nccl::{ArrivedGradient, Error, GradientHook, GradientSink, ProcessGroup, gradient_hook};

use super::config;
use crate::model::{FEATURES, Net, rows};

/// Marks the log when a gradient passes.
struct Probe(EventLog);

impl GradientSink for Probe {
    fn receive(&self, _slot: usize, _gradient: &ArrivedGradient<'_>) {
        self.0.mark("backward of the first layer");
    }

    fn fail(&self, _slot: usize, error: Error) {
        panic!("{error}");
    }
}

/// The events of one step on `device`, with one bucket for each layer or so.
fn events(device: &Device, overlap: bool) -> Vec<DdpEvent> {
    let config = config().with_first_bucket_bytes(1).with_bucket_bytes(1).with_overlap(overlap);
    let (mut ddp, net) =
        DistributedDataParallel::new(Net::new(device), &ProcessGroup::single(), &config).unwrap();
    let hooked = ddp.hook(&net).unwrap();
    // The gradient of the first layer's input exists only once that layer's backward step has run. The product puts the
    // probe one deeper than a hook without a lift, so that the order between them is defined.
    let probe = GradientHook::new(Arc::new(Probe(ddp.events().clone())), 0);
    let input = rows(0, 4, device).require_grad() * 1.0;
    let input = gradient_hook(input, &Tensor::<1>::zeros([1], device), probe);
    assert_eq!(input.dims()[1], FEATURES);
    let loss = relu(hooked.forward(input, true)).sum();
    ddp.events().start();
    ddp.backward(&loss, &net).unwrap();
    ddp.events().stop()
}

fn position(events: &[DdpEvent], event: &DdpEvent) -> usize {
    events.iter().position(|other| other == event).unwrap_or_else(|| panic!("no {event:?} in {events:?}"))
}

#[test]
fn the_first_bucket_is_launched_before_the_first_layers_backward_has_run() {
    for device in [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()] {
        let events = events(&device, true);
        let launched = position(&events, &DdpEvent::BucketLaunched(0));
        let first_layer = position(&events, &DdpEvent::Mark("backward of the first layer".into()));
        assert!(launched < first_layer, "{events:?}");
    }
}

#[test]
fn without_the_depth_lift_no_bucket_is_launched_before_the_whole_backward_has_run() {
    let events = events(&Device::flex().autodiff(), false);
    let launched = position(&events, &DdpEvent::BucketLaunched(0));
    let first_layer = position(&events, &DdpEvent::Mark("backward of the first layer".into()));
    assert!(first_layer < launched, "{events:?}");
}

#[test]
fn buckets_launch_in_index_order_layer_by_layer() {
    let events = events(&Device::flex().autodiff(), true);
    let launches: Vec<usize> = events
        .iter()
        .filter_map(|event| match event {
            DdpEvent::BucketLaunched(bucket) => Some(*bucket),
            _ => None,
        })
        .collect();
    // One-byte buckets hold one parameter each: weight and bias of three layers.
    assert_eq!(launches, [0, 1, 2, 3, 4, 5]);
}
