//! Casts between f32 and half in one pass over memory. Burn's cast converts one value after the other, which takes ten
//! times as long.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Bytes, DType, FloatDType};
use burn_flex::FlexTensor;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The elements of `tensor` in `dtype`, rounded to the nearest, ties to even.
pub(super) fn cast(tensor: FlexTensor, dtype: FloatDType) -> FlexTensor {
    match (tensor.dtype(), dtype) {
        (DType::F32, FloatDType::BF16) => narrow::<bf16>(tensor, DType::BF16),
        (DType::F32, FloatDType::F16) => narrow::<f16>(tensor, DType::F16),
        (DType::BF16, FloatDType::F32) => widen::<bf16>(tensor),
        (DType::F16, FloatDType::F32) => widen::<f16>(tensor),
        _ => Flex::float_cast(tensor, dtype),
    }
}

fn narrow<H>(tensor: FlexTensor, dtype: DType) -> FlexTensor
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    let tensor = whole(tensor);
    let mut values = vec![H::zeroed(); tensor.layout().num_elements()];
    values.convert_from_f32_slice(bytemuck::cast_slice(tensor.bytes()));
    FlexTensor::new(Bytes::from_elems(values), tensor.layout().clone(), dtype)
}

fn widen<H>(tensor: FlexTensor) -> FlexTensor
where
    H: bytemuck::Pod,
    [H]: HalfFloatSliceExt,
{
    let tensor = whole(tensor);
    let mut values = vec![0.0f32; tensor.layout().num_elements()];
    bytemuck::cast_slice::<u8, H>(tensor.bytes()).convert_to_f32_slice(&mut values);
    FlexTensor::new(Bytes::from_elems(values), tensor.layout().clone(), DType::F32)
}

/// The tensor as it is where it covers its memory exactly, in whatever order; else a copy that does.
fn whole(tensor: FlexTensor) -> FlexTensor {
    if super::is_dense(&tensor) { tensor } else { tensor.to_contiguous() }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Slice, TensorData};

    use super::*;

    fn random(shape: [usize; 2]) -> FlexTensor {
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|i| ((i * 7919 % 1009) as f32 - 504.3) * 0.37).collect();
        FlexTensor::from_data(TensorData::new(values, shape))
    }

    #[test]
    fn every_cast_gives_the_bits_of_burns() {
        // The last two lie between two bf16 values.
        let ties = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0];
        let special =
            [[0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, 65520.0, 1e-8].as_slice(), &ties].concat();
        let special = FlexTensor::from_data(TensorData::new(special, [9]));
        let transposed = Flex::float_swap_dims(random([13, 37]), 0, 1);
        let part = Flex::float_slice(random([13, 37]), &[Slice::from(3..9), Slice::from(5..20)]);
        let repeated = Flex::float_expand(random([1, 37]), [5, 37].into());
        for tensor in [random([13, 37]), random([0, 4]), special, transposed, part, repeated] {
            for dtype in [FloatDType::F16, FloatDType::BF16] {
                let expected = Flex::float_cast(tensor.clone(), dtype);
                let found = cast(tensor.clone(), dtype);
                assert_eq!(bits(&found), bits(&expected), "{dtype:?}");
                let back = (cast(found, FloatDType::F32), Flex::float_cast(expected, FloatDType::F32));
                assert_eq!(bits(&back.0), bits(&back.1), "{dtype:?} to f32");
            }
        }
    }

    /// Shape and elements in logical order.
    fn bits(tensor: &FlexTensor) -> (Vec<usize>, Vec<u8>) {
        let tensor = tensor.clone().to_contiguous();
        let size = tensor.dtype().size();
        let start = tensor.layout().start_offset() * size;
        let shape = tensor.layout().shape().to_vec();
        (shape, tensor.bytes()[start..start + tensor.layout().num_elements() * size].to_vec())
    }

    #[test]
    fn a_nan_stays_one() {
        let nan = FlexTensor::from_data(TensorData::new(vec![f32::NAN; 5], [5]));
        for dtype in [FloatDType::F16, FloatDType::BF16] {
            let back = cast(cast(nan.clone(), dtype), FloatDType::F32);
            assert!(back.storage::<f32>().iter().all(|value| value.is_nan()));
        }
    }
}
