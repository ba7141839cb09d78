//! The depth lift: tensors whose place in the autodiff graph decides when a gradient hook fires.
//!
//! Burn runs the backward tape strictly by depth, deepest step first. A hook on a leaf would have depth 1 and fire
//! after the whole backward pass, when nothing is left to overlap with. Giving the hook a second, untracked parent
//! of depth `K` places it at depth `K + 1` and, since every op lies deeper than its parents, pushes the layers that
//! use the parameter below it. With a `K` per bucket that grows along the forward pass, the tape becomes: layers of
//! the last bucket, its hooks, layers of the bucket before, its hooks, and so on.

use burn::tensor::{Device, Tensor};

use super::bucket::BucketPlan;

/// Depth that one parameter's layer is allowed to add to the graph. A layer deeper than the sum over its bucket makes
/// hooks late, never wrong; a normalisation composed of primitive ops adds about fifteen for two parameters.
const DEPTH_PER_PARAMETER: usize = 64;

/// The depth of each bucket's lift, in launch order (the last layers first, which lie deepest).
pub(crate) fn depths(plan: &BucketPlan) -> Vec<usize> {
    let mut depth = 0;
    let mut depths: Vec<usize> = plan
        .buckets
        .iter()
        .rev()
        .map(|bucket| {
            let own = depth;
            depth += DEPTH_PER_PARAMETER * (bucket.parameters.len() + 1);
            own
        })
        .collect();
    depths.reverse();
    depths
}

/// The lifts of all buckets on every device that holds trainable parameters. Both parents of a hook must be on one device,
/// and the parameters of a bucket need not be: it lies in host memory.
pub(crate) struct Lifts(Vec<(Device, Vec<Tensor<1>>)>);

impl Lifts {
    /// Builds the lift of each depth on each of `devices`, once for all steps.
    pub(crate) fn new<'a>(depths: &[usize], devices: impl IntoIterator<Item = &'a Device>) -> Self {
        let mut lifts: Vec<(Device, Vec<Tensor<1>>)> = Vec::new();
        for device in devices {
            if lifts.iter().all(|(known, _)| known != device) {
                lifts.push((device.clone(), build(depths, device)));
            }
        }
        Self(lifts)
    }

    /// The lift of `bucket` on `device`, if a trainable parameter was there at the start.
    pub(crate) fn get(&self, bucket: usize, device: &Device) -> Option<&Tensor<1>> {
        self.0.iter().find(|(known, _)| known == device).map(|(_, lifts)| &lifts[bucket])
    }
}

/// One untracked tensor of each depth.
fn build(depths: &[usize], device: &Device) -> Vec<Tensor<1>> {
    let mut lifts = Vec::with_capacity(depths.len());
    let (mut tensor, mut reached) = (Tensor::<1>::from_data([0.0], device), 0);
    for &depth in depths.iter().rev() {
        for _ in reached..depth {
            // An operation as any other for the tape, and none for the device.
            tensor = tensor.reshape([1]);
        }
        reached = depth;
        lifts.push(tensor.clone());
    }
    lifts.reverse();
    lifts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::bucket::{GradientSize, plan};
    use crate::transport::DType;

    #[test]
    fn later_layers_get_deeper_lifts_and_strides_grow_with_the_bucket() {
        let sizes = vec![GradientSize { dtype: DType::F32, elements: 16 }; 6];
        let plan = plan(&sizes, 64, 128, 64);
        let parameters: Vec<_> = plan.buckets.iter().map(|bucket| bucket.parameters.len()).collect();
        assert_eq!(parameters, [1, 2, 2, 1]);
        assert_eq!(depths(&plan), [512, 320, 128, 0]);
    }
}
