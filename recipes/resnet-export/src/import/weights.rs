//! The same weights file each time.

use std::path::Path;

use burn::store::burn_pack::{Error as PackError, Tensor};
use burn_nccl_records::{
    Error, Names, OpenOptions, SaveFormat, SaveOptions, Source, StoredTensor, save_tensors,
};
use sha2::{Digest, Sha256};

/// Writes the tensors of `from` to `to` with identifiers that depend on the ONNX file `onnx` and their names alone.
///
/// burn-onnx draws them, so that its file is another one each time. They tell parameters apart in optimizers.
pub(super) fn with_fixed_identifiers(from: &Path, to: &Path, onnx: &[u8]) -> Result<(), Error> {
    let source = Source::open(from, &OpenOptions::default())?;
    let file = Sha256::digest(onnx);
    let tensors =
        source.tensors().iter().map(|stored| with_identifier(stored, identifier(&file, stored.name())));
    let options = SaveOptions::default().with_format(SaveFormat::Burnpack).with_names(Names::Burn);
    save_tensors(tensors.collect(), to, &options)?;
    Ok(())
}

fn with_identifier(stored: &StoredTensor, identifier: u64) -> Tensor {
    let (name, dtype, shape) = (stored.name().into(), stored.dtype(), stored.shape().to_vec());
    let bytes = usize::try_from(stored.byte_len()).unwrap_or(usize::MAX);
    let stored = stored.clone();
    Tensor::deferred(name, dtype, shape, Some(identifier), bytes, move || {
        stored.data().map(|data| data.into_bytes()).map_err(|error| PackError::IoError(error.to_string()))
    })
}

fn identifier(file: &[u8], name: &str) -> u64 {
    let digest = Sha256::new().chain_update(file).chain_update(name).finalize();
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_depend_on_the_file_and_the_name() {
        let first = identifier(b"file", "conv2d1.weight");
        assert_eq!(first, identifier(b"file", "conv2d1.weight"));
        assert_ne!(first, identifier(b"file", "conv2d2.weight"));
        assert_ne!(first, identifier(b"another", "conv2d1.weight"));
    }
}
