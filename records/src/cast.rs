//! Between floating-point types in one pass, which Burn's conversion through a number of any type takes several times as
//! long for.

use burn::tensor::{DType, DataError, TensorData};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// `data` as `dtype`; itself if it is that already.
pub(crate) fn cast(data: TensorData, dtype: DType) -> Result<TensorData, DataError> {
    let shape = data.shape().clone();
    let values = match (data.dtype(), dtype) {
        (from, to) if from == to => return Ok(data),
        (DType::F16, DType::F32) => TensorData::new(data.as_slice::<f16>()?.to_f32_vec(), shape),
        (DType::BF16, DType::F32) => TensorData::new(data.as_slice::<bf16>()?.to_f32_vec(), shape),
        (DType::F64, DType::F32) => {
            TensorData::new(data.as_slice()?.iter().map(|&x: &f64| x as f32).collect(), shape)
        }
        (DType::F32, DType::F16) => {
            let values = data.as_slice()?;
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            TensorData::new(halves, shape)
        }
        (DType::F32, DType::BF16) => {
            let values = data.as_slice()?;
            let mut halves = vec![bf16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            TensorData::new(halves, shape)
        }
        _ => return data.try_cast(dtype),
    };
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_round_to_the_nearest_and_widen_exactly() {
        let values = TensorData::new(vec![1.0f32, -2.5, 65504.0, 1e-8, 1.000_488_3], [5]);
        let halves = cast(values.clone(), DType::F16).unwrap();
        // 2^-11 above 1 lies half way between 1 and its successor in f16, and goes to the even one.
        assert_eq!(
            cast(halves, DType::F32).unwrap().as_slice::<f32>().unwrap(),
            [1.0, -2.5, 65504.0, 0.0, 1.0]
        );
        let wide = cast(values, DType::BF16).unwrap();
        assert_eq!(cast(wide, DType::F32).unwrap().as_slice::<f32>().unwrap()[..3], [1.0, -2.5, 65536.0]);
        let doubles = TensorData::new(vec![0.1f64, f64::MAX], [2]);
        assert_eq!(cast(doubles, DType::F32).unwrap().as_slice::<f32>().unwrap(), [0.1, f32::INFINITY]);
    }
}
