//! Fingerprinting the values of a model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use sha2::{Digest, Sha256};

/// SHA-256 of the float parameters and running statistics of `model`, in visit order, as little-endian f32, in
/// hexadecimal.
///
/// Two models of one architecture and of f32 or a shorter float type have the same one exactly when these values are
/// equal bit for bit. Of f64 only what f32 keeps is compared; integer and bool parameters and shapes are left out.
pub fn parameters_sha256<M: Module>(model: &M) -> String {
    let mut hash = Hash(Sha256::new());
    model.visit(&mut hash);
    hash.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Hash(Sha256);

impl ModuleVisitor for Hash {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data().convert::<f32>();
        for value in data.iter::<f32>() {
            self.0.update(value.to_le_bytes());
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Linear};
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_values_as_little_endian_f32() {
        let device = Device::flex();
        let linear = Linear {
            weight: Param::from_tensor(Tensor::from_floats([[1.0, -2.0]], &device)),
            bias: Some(Param::from_tensor(Tensor::from_floats([0.5, 0.0], &device))),
        };
        // printf '\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f\0\0\0\0' | sha256sum
        let expected = "c16372899a2906d5f8ddcbd6371a6e2315909b9a7195368ed55793904e9b33d3";
        assert_eq!(parameters_sha256(&linear), expected);
    }

    #[test]
    fn running_statistics_count_for_the_fingerprint() {
        let device = Device::flex().autodiff();
        let norm: BatchNorm = BatchNormConfig::new(3).init(&device);
        let values = [[1.0f32; 3], [0.0; 3], [0.0; 3], [1.0; 3]].concat();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let expected: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(parameters_sha256(&norm), expected);
    }
}
