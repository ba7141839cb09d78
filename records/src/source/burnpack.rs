//! Burn's own format. Its reader checks each tensor's bytes against its shape and the file; see `burn-pack`.

use std::collections::BTreeMap;

use burn::store::burn_pack::Reader;
use burn::tensor::{AllocationProperty, Bytes, DType};

use super::{Contents, Payload, StoredTensor};
use crate::{Error, Format, Result};

pub(super) fn read(contents: &Contents) -> Result<(BTreeMap<String, String>, Vec<StoredTensor>)> {
    let corrupt = |reason: &dyn ToString| contents.corrupt(Format::Burnpack, reason.to_string());
    let bytes = Bytes::from_shared(contents.bytes.clone(), AllocationProperty::File);
    let reader = Reader::from_bytes(bytes).map_err(|error| corrupt(&error))?;
    let metadata = reader.metadata().clone();
    let packed = reader.into_tensors().map_err(|error| corrupt(&error))?;

    // Tensors that share bytes would let a small file ask for memory without end.
    let claimed = packed.iter().map(|tensor| tensor.byte_len() as u64).fold(0, u64::saturating_add);
    if claimed > contents.bytes.len() as u64 {
        return Err(corrupt(&format!("its tensors claim {claimed} bytes and overlap")));
    }
    let origin = contents.origin(Format::Burnpack);
    let tensors = packed.into_iter().map(|tensor| {
        let (name, dtype, shape, param_id, bytes) = tensor.into_parts().map_err(|error| corrupt(&error))?;
        if matches!(dtype, DType::QFloat(_)) {
            // How many bytes such a tensor needs is checked by nobody before a backend reads them.
            let dtype = "quantized float".into();
            return Err(Error::UnsupportedType { path: contents.path.clone(), tensor: name, dtype });
        }
        let (byte_len, shape, origin) = (bytes.len() as u64, shape.to_vec(), origin.clone());
        Ok(StoredTensor { name, dtype, shape, byte_len, param_id, payload: Payload::Shared(bytes), origin })
    });
    // The reader sorts by name.
    Ok((metadata, tensors.collect::<Result<_>>()?))
}
