//! Tensors from one file to another with the names they have.

use burn::store::bridge;
use burn::store::burn_pack::{Error as PackError, Tensor};
use burn::tensor::{DType, Shape};
use burn_nccl_records::{Source, StoredTensor};

use super::target::{Dtype, Target};

/// The tensors of `source`, each read when its turn to be written comes.
///
/// For PyTorch, which would not find them behind it, they lose the prefix of its wrappers.
pub(super) fn tensors(source: &Source, dtype: Option<Dtype>, target: Target) -> Vec<Tensor> {
    let prefix = if target == Target::Torch { source.wrapper_prefix() } else { String::new() };
    let convert = |stored: &StoredTensor| {
        let tensor = deferred(stored, &stored.name()[prefix.len()..]);
        match dtype {
            Some(Dtype::F32) if stored.dtype().is_float() => as_f32(tensor),
            _ => tensor,
        }
    };
    source.tensors().iter().map(convert).collect()
}

fn deferred(stored: &StoredTensor, name: &str) -> Tensor {
    let (dtype, shape, param_id) = (stored.dtype(), stored.shape().to_vec(), stored.param_id());
    let bytes = usize::try_from(stored.byte_len()).unwrap_or(usize::MAX);
    let stored = stored.clone();
    Tensor::deferred(name.into(), dtype, shape, param_id, bytes, move || {
        stored.data().map(|data| data.into_bytes()).map_err(|error| PackError::IoError(error.to_string()))
    })
}

fn as_f32(tensor: Tensor) -> Tensor {
    let (name, shape): (String, Shape) = (tensor.name.clone(), tensor.shape.clone());
    bridge::map_data(tensor, name, DType::F32, shape, |data| data.convert_dtype(DType::F32))
}
