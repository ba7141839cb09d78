//! The network of `tests/fixtures/make.py`, and what real PyTorch says of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use serde::Deserialize;

/// A file of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The network in Burn.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) conv: Conv2d,
    pub(crate) bn: BatchNorm,
    pub(crate) fc: Linear,
}

impl Net {
    pub(crate) fn new(device: &Device) -> Self {
        Self::with_classes(2, device)
    }

    pub(crate) fn with_classes(classes: usize, device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([2, 3], [2, 2]).init(device),
            bn: BatchNormConfig::new(3).init(device),
            fc: LinearConfig::new(3, classes).init(device),
        }
    }

    pub(crate) fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features = self.bn.forward(self.conv.forward(images));
        self.fc.forward(features.mean_dims(&[2, 3]).flatten(1, 3))
    }

    /// Every value under PyTorch's name and in its layout, by hand.
    pub(crate) fn state(&self) -> BTreeMap<&'static str, Vec<f32>> {
        fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
            tensor.into_data().try_cast_as::<f32>().unwrap().try_into_vec().unwrap()
        }
        BTreeMap::from([
            ("conv.weight", floats(self.conv.weight.val())),
            ("conv.bias", floats(self.conv.bias.as_ref().unwrap().val())),
            ("bn.weight", floats(self.bn.gamma.val())),
            ("bn.bias", floats(self.bn.beta.val())),
            ("bn.running_mean", floats(self.bn.running_mean.value())),
            ("bn.running_var", floats(self.bn.running_var.value())),
            ("fc.weight", floats(self.fc.weight.val().transpose())),
            ("fc.bias", floats(self.fc.bias.as_ref().unwrap().val())),
        ])
    }
}

#[derive(Deserialize)]
pub(crate) struct Golden {
    images: Vec<f32>,
    logits: Vec<f32>,
    pub(crate) state: BTreeMap<String, Vec<f32>>,
}

/// What PyTorch has in the network.
pub(crate) fn golden() -> Golden {
    serde_json::from_str(&std::fs::read_to_string(fixture("net.json")).unwrap()).unwrap()
}

/// Every value of `net` is PyTorch's, to the bit.
pub(crate) fn assert_is_golden(net: &Net) {
    assert_is_scaled(net, 1.0);
}

/// Every value of `net` is PyTorch's times `factor`.
pub(crate) fn assert_is_scaled(net: &Net, factor: f32) {
    let golden = golden().state;
    let state = net.state();
    assert_eq!(state.len() + 1, golden.len(), "all but num_batches_tracked");
    for (name, values) in state {
        let expected: Vec<f32> = golden[name].iter().map(|value| value * factor).collect();
        assert_eq!(values, expected, "{name}");
    }
}

/// The network computes what it computes in PyTorch.
pub(crate) fn assert_computes_as_pytorch(net: &Net, device: &Device) {
    let Golden { images, logits, .. } = golden();
    let images = Tensor::from_data(TensorData::new(images, [2, 2, 3, 3]), device);
    let computed: Vec<f32> = net.forward(images).into_data().try_into_vec().unwrap();
    for (computed, expected) in computed.iter().zip(&logits) {
        assert!((computed - expected).abs() < 1e-5, "{computed} and {expected}");
    }
    assert_eq!(computed.len(), logits.len());
}
