//! The last step of a mean.

use crate::transport::DType;

/// Divides every element. Means of f16 and bf16 come here as f32; integers have no mean, and the group has refused it.
pub(super) fn divide(dtype: DType, bytes: &mut [u8], by: usize) {
    match dtype {
        DType::F32 => each(bytes, |value| (f32::from_ne_bytes(value) / by as f32).to_ne_bytes()),
        DType::F64 => each(bytes, |value| (f64::from_ne_bytes(value) / by as f64).to_ne_bytes()),
        DType::F16 | DType::BF16 | DType::I32 | DType::I64 | DType::U8 => {}
    }
}

/// Elements need not be aligned.
fn each<const N: usize>(bytes: &mut [u8], change: impl Fn([u8; N]) -> [u8; N]) {
    bytes.as_chunks_mut().0.iter_mut().for_each(|element| *element = change(*element));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_divided_in_its_own_type() {
        let mut bytes: Vec<u8> = [3.0f32, -1.0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        divide(DType::F32, &mut bytes, 6);
        assert_eq!(bytes[..4], 0.5f32.to_ne_bytes());
        assert_eq!(bytes[4..], (-1.0f32 / 6.0).to_ne_bytes());
        let mut bytes = 1.0f64.to_ne_bytes();
        divide(DType::F64, &mut bytes, 3);
        assert_eq!(bytes, (1.0f64 / 3.0).to_ne_bytes());
    }
}
