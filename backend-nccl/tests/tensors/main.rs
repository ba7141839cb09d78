//! The tensor layer over real TCP connections, with one thread for each rank.

#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod adjoints;
mod autocast;
mod call_sites;
mod clipping;
mod communication;
mod gradient_storage;
mod messages;
mod model;
#[cfg(feature = "ndarray")]
mod placement;
mod scaling;
mod sync_batch_norm;
mod views;

use std::time::Duration;

use burn::tensor::{Device, Tensor};
use burn_nccl::{GroupOptions, ProcessGroup};

/// Runs `body` on `world_size` ranks and returns what they return, in rank order.
fn on_ranks<T: Send>(world_size: usize, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(60));
    let groups = ProcessGroup::local(world_size, options).expect("ranks connect on the loopback interface");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank does not panic")).collect()
    })
}

/// The plain devices of the backends in this build.
fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "ndarray")]
        Device::ndarray(),
    ]
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().expect("an f32 tensor")
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let limit = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= limit, "element {index}: {found}, expected {expected}");
    }
}
