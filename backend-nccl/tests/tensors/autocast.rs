//! The mixed-precision policy.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_nccl::amp::{Autocast, AutocastConfig, Precision, match_dtype, widen};

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: LayerNorm,
    fc: Linear,
}

#[test]
fn smoke() {
    let device = Device::flex().autodiff();
    let net = Net {
        conv: Conv2dConfig::new([1, 2], [3, 3]).init(&device),
        norm: LayerNormConfig::new(8).init(&device),
        fc: LinearConfig::new(8, 3).init(&device),
    };
    for precision in Precision::ALL {
        let autocast = Autocast::new(precision);
        autocast.check(&net, &device).unwrap();
        let half = autocast.module(&net).unwrap();
        println!("{:?} {:?}", half.conv.weight.val().dtype(), half.norm.gamma.val().dtype());
        let x = Tensor::<4>::ones([2, 1, 4, 4], &device);
        let y = half.conv.forward(match_dtype(x, &half.conv.weight.val()));
        let y = half.fc.forward(half.norm.forward(y.reshape([2, 8])));
        println!("{:?}", y.dtype());
        let grads = widen(y).sum().backward();
        assert_eq!(net.conv.weight.grad(&grads).unwrap().dtype(), DType::F32);
        assert_eq!(net.norm.gamma.grad(&grads).unwrap().dtype(), DType::F32);
    }
}
