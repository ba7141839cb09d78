// Generated from ONNX "thin_resnet.onnx" by `recipe-resnet-export import`, with burn-onnx
extern crate alloc;
use burn::prelude::*;
use burn::nn::BatchNorm;
use burn::nn::BatchNormConfig;
use burn::nn::Linear;
use burn::nn::LinearConfig;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::AdaptiveAvgPool2d;
use burn::nn::pool::AdaptiveAvgPool2dConfig;
use burn::nn::pool::MaxPool2d;
use burn::nn::pool::MaxPool2dConfig;
use burn::tensor::Bytes;
use burn_store::BurnpackStore;
use burn_store::ModuleSnapshot;


#[derive(Module, Debug)]
pub struct Model {
    conv2d1: Conv2d,
    batchnormalization1: BatchNorm,
    maxpool2d1: MaxPool2d,
    conv2d2: Conv2d,
    batchnormalization2: BatchNorm,
    conv2d3: Conv2d,
    batchnormalization3: BatchNorm,
    conv2d4: Conv2d,
    batchnormalization4: BatchNorm,
    conv2d5: Conv2d,
    batchnormalization5: BatchNorm,
    conv2d6: Conv2d,
    batchnormalization6: BatchNorm,
    conv2d7: Conv2d,
    batchnormalization7: BatchNorm,
    conv2d8: Conv2d,
    batchnormalization8: BatchNorm,
    conv2d9: Conv2d,
    batchnormalization9: BatchNorm,
    conv2d10: Conv2d,
    batchnormalization10: BatchNorm,
    conv2d11: Conv2d,
    batchnormalization11: BatchNorm,
    conv2d12: Conv2d,
    batchnormalization12: BatchNorm,
    globalaveragepool1: AdaptiveAvgPool2d,
    linear1: Linear,
    #[module(skip)]
    device: Device,
}


impl Model {
    /// Load model weights from in-memory bytes.
    ///
    /// The bytes must be the contents of a `.bpk` file.
    pub fn from_bytes(bytes: Bytes, device: &Device) -> Self {
        let mut model = Self::new(device);
        let mut store = BurnpackStore::from_bytes(Some(bytes));
        model
            .load_from(&mut store)
            .unwrap_or_else(|e| panic!("Failed to load burnpack bytes: {e}"));
        model
    }
}

impl Model {
    #[allow(unused_variables)]
    pub fn new(device: &Device) -> Self {
        let conv2d1 = Conv2dConfig::new([3, 8], [7, 7])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(3, 3, 3, 3))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization1 = BatchNormConfig::new(8)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let maxpool2d1 = MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_ceil_mode(false)
            .init();
        let conv2d2 = Conv2dConfig::new([8, 8], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization2 = BatchNormConfig::new(8)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d3 = Conv2dConfig::new([8, 8], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization3 = BatchNormConfig::new(8)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d4 = Conv2dConfig::new([8, 16], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization4 = BatchNormConfig::new(16)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d5 = Conv2dConfig::new([16, 16], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization5 = BatchNormConfig::new(16)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d6 = Conv2dConfig::new([8, 16], [1, 1])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Valid)
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization6 = BatchNormConfig::new(16)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d7 = Conv2dConfig::new([16, 32], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization7 = BatchNormConfig::new(32)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d8 = Conv2dConfig::new([32, 32], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization8 = BatchNormConfig::new(32)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d9 = Conv2dConfig::new([16, 32], [1, 1])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Valid)
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization9 = BatchNormConfig::new(32)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d10 = Conv2dConfig::new([32, 64], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization10 = BatchNormConfig::new(64)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d11 = Conv2dConfig::new([64, 64], [3, 3])
            .with_stride([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization11 = BatchNormConfig::new(64)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let conv2d12 = Conv2dConfig::new([32, 64], [1, 1])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Valid)
            .with_dilation([1, 1])
            .with_groups(1)
            .with_bias(false)
            .init(device);
        let batchnormalization12 = BatchNormConfig::new(64)
            .with_epsilon(0.00001)
            .with_momentum(0.1)
            .init(device);
        let globalaveragepool1 = AdaptiveAvgPool2dConfig::new([1, 1]).init();
        let linear1 = LinearConfig::new(64, 8).with_bias(true).init(device);
        Self {
            conv2d1,
            batchnormalization1,
            maxpool2d1,
            conv2d2,
            batchnormalization2,
            conv2d3,
            batchnormalization3,
            conv2d4,
            batchnormalization4,
            conv2d5,
            batchnormalization5,
            conv2d6,
            batchnormalization6,
            conv2d7,
            batchnormalization7,
            conv2d8,
            batchnormalization8,
            conv2d9,
            batchnormalization9,
            conv2d10,
            batchnormalization10,
            conv2d11,
            batchnormalization11,
            conv2d12,
            batchnormalization12,
            globalaveragepool1,
            linear1,
            device: device.clone(),
        }
    }

    #[allow(clippy::let_and_return, clippy::approx_constant)]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let conv2d1_out1 = self.conv2d1.forward(images);
        let batchnormalization1_out1 = self.batchnormalization1.forward(conv2d1_out1);
        let relu1_out1 = burn::tensor::activation::relu(batchnormalization1_out1);
        let maxpool2d1_out1 = self.maxpool2d1.forward(relu1_out1);
        let conv2d2_out1 = self.conv2d2.forward(maxpool2d1_out1.clone());
        let batchnormalization2_out1 = self.batchnormalization2.forward(conv2d2_out1);
        let relu2_out1 = burn::tensor::activation::relu(batchnormalization2_out1);
        let conv2d3_out1 = self.conv2d3.forward(relu2_out1);
        let batchnormalization3_out1 = self.batchnormalization3.forward(conv2d3_out1);
        let add1_out1 = batchnormalization3_out1.add(maxpool2d1_out1);
        let relu3_out1 = burn::tensor::activation::relu(add1_out1);
        let conv2d4_out1 = self.conv2d4.forward(relu3_out1.clone());
        let batchnormalization4_out1 = self.batchnormalization4.forward(conv2d4_out1);
        let relu4_out1 = burn::tensor::activation::relu(batchnormalization4_out1);
        let conv2d5_out1 = self.conv2d5.forward(relu4_out1);
        let batchnormalization5_out1 = self.batchnormalization5.forward(conv2d5_out1);
        let conv2d6_out1 = self.conv2d6.forward(relu3_out1);
        let batchnormalization6_out1 = self.batchnormalization6.forward(conv2d6_out1);
        let add2_out1 = batchnormalization5_out1.add(batchnormalization6_out1);
        let relu5_out1 = burn::tensor::activation::relu(add2_out1);
        let conv2d7_out1 = self.conv2d7.forward(relu5_out1.clone());
        let batchnormalization7_out1 = self.batchnormalization7.forward(conv2d7_out1);
        let relu6_out1 = burn::tensor::activation::relu(batchnormalization7_out1);
        let conv2d8_out1 = self.conv2d8.forward(relu6_out1);
        let batchnormalization8_out1 = self.batchnormalization8.forward(conv2d8_out1);
        let conv2d9_out1 = self.conv2d9.forward(relu5_out1);
        let batchnormalization9_out1 = self.batchnormalization9.forward(conv2d9_out1);
        let add3_out1 = batchnormalization8_out1.add(batchnormalization9_out1);
        let relu7_out1 = burn::tensor::activation::relu(add3_out1);
        let conv2d10_out1 = self.conv2d10.forward(relu7_out1.clone());
        let batchnormalization10_out1 = self.batchnormalization10.forward(conv2d10_out1);
        let relu8_out1 = burn::tensor::activation::relu(batchnormalization10_out1);
        let conv2d11_out1 = self.conv2d11.forward(relu8_out1);
        let batchnormalization11_out1 = self.batchnormalization11.forward(conv2d11_out1);
        let conv2d12_out1 = self.conv2d12.forward(relu7_out1);
        let batchnormalization12_out1 = self.batchnormalization12.forward(conv2d12_out1);
        let add4_out1 = batchnormalization11_out1.add(batchnormalization12_out1);
        let relu9_out1 = burn::tensor::activation::relu(add4_out1);
        let globalaveragepool1_out1 = self.globalaveragepool1.forward(relu9_out1);
        let flatten1_out1 = {
            let leading_dim = globalaveragepool1_out1
                .shape()[..1]
                .iter()
                .product::<usize>() as i32;
            globalaveragepool1_out1.reshape::<2, _>([leading_dim, -1])
        };
        let linear1_out1 = self.linear1.forward(flatten1_out1);
        linear1_out1
    }
}
