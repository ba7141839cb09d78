use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor, s};
use burn_nccl::amp::match_dtype;

/// Applies `conv`; in training on a CPU, a 1x1 convolution becomes one matrix product over batch and positions.
///
/// Burn derives the weight gradient of a convolution as another convolution whose kernel is the whole feature map.
/// On the CPU backends, for a 1x1 kernel, that ends in one matrix-vector product per input channel: most of the
/// backward time of a ResNet-50. A matrix product has matrix products for gradients, and its output, whose memory
/// has the channels outermost, is the layout in which batch normalisation reduces without a copy.
///
/// The input is cast to the weight's type, so that the network runs under any mixed-precision policy.
///
/// Inference keeps the convolution, so that an exported graph has a `Conv` node, and so do GPUs.
///
/// # Shapes
///
/// - `input`: `[batch, channels_in, height, width]`
/// - output: `[batch, channels_out, height_out, width_out]`
pub(crate) fn convolve(conv: &Conv2d, input: Tensor<4>) -> Tensor<4> {
    let input = match_dtype(input, &conv.weight.val());
    let device = input.device();
    if device.is_autodiff() && is_cpu(&device) && is_pointwise(conv) {
        pointwise(conv, input)
    } else {
        conv.forward(input)
    }
}

fn is_pointwise(conv: &Conv2d) -> bool {
    conv.kernel_size == [1, 1]
        && conv.groups == 1
        && conv.bias.is_none()
        && matches!(conv.padding, PaddingConfig2d::Valid | PaddingConfig2d::Explicit(0, 0, 0, 0))
}

/// Whether the device belongs to a CPU backend of this build.
///
/// By comparison with the devices that the features give, since Burn has no such question: `Device::identity` exists in
/// builds with a GPU backend only, and the variants of a device are behind the features too.
#[allow(deprecated)] // Upstream deprecates ndarray in favour of flex.
fn is_cpu(device: &Device) -> bool {
    let cpus: &[Device] = &[
        #[cfg(feature = "flex")]
        Device::flex(),
        #[cfg(feature = "ndarray")]
        Device::ndarray(),
    ];
    cpus.contains(device)
}

fn pointwise(conv: &Conv2d, input: Tensor<4>) -> Tensor<4> {
    let input = match conv.stride {
        [1, 1] => input,
        [rows, columns] => input.slice(s![.., .., ..;rows, ..;columns]),
    };
    let [batch, channels_in, height, width] = input.dims();
    let [channels_out, ..] = conv.weight.dims();
    let weight = conv.weight.val().reshape([channels_out, channels_in]);
    let input = input.swap_dims(0, 1).reshape([channels_in, batch * height * width]);
    weight.matmul(input).reshape([channels_out, batch, height, width]).swap_dims(0, 1)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Distribution, Tolerance};

    use super::*;
    use crate::block::conv;

    #[test]
    fn the_matrix_product_gives_the_values_and_gradients_of_the_convolution() {
        let device = Device::flex().autodiff();
        for stride in [1, 2, 3] {
            let layer = conv(5, 7, 1, stride, &device);
            let input = Tensor::<4>::random([3, 5, 6, 9], Distribution::Default, &device).require_grad();
            let run = |output: Tensor<4>| {
                let shape = output.shape();
                // Weighs each output differently, so that a gradient in the wrong place shows.
                let weights = Tensor::<1, burn::tensor::Int>::arange(0..shape.num_elements() as i64, &device);
                let grads = (output.clone() * weights.float().reshape(shape).cos()).sum().backward();
                (
                    output.into_data(),
                    layer.weight.grad(&grads).unwrap().into_data(),
                    input.grad(&grads).unwrap().into_data(),
                )
            };
            let expected = run(layer.forward(input.clone()));
            let found = run(pointwise(&layer, input.clone()));
            let tolerance = Tolerance::<f32>::rel_abs(1e-5, 1e-5);
            found.0.assert_approx_eq(&expected.0, tolerance);
            found.1.assert_approx_eq(&expected.1, tolerance);
            found.2.assert_approx_eq(&expected.2, tolerance);
        }
    }

    #[test]
    fn only_plain_1x1_convolutions_are_replaced() {
        let device = Device::flex();
        assert!(is_pointwise(&conv(4, 4, 1, 2, &device)));
        assert!(!is_pointwise(&conv(4, 4, 3, 1, &device)));
        let config = burn::nn::conv::Conv2dConfig::new([4, 4], [1, 1]);
        assert!(!is_pointwise(&config.init(&device)), "has a bias");
        assert!(!is_pointwise(&config.with_bias(false).with_groups(2).init(&device)));
    }
}
