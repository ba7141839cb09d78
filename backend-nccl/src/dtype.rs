//! The one place where Burn's element types meet the transport's.

use crate::error::{Error, Result};
use crate::transport::DType;

/// The transport's name for Burn's `dtype`.
///
/// # Errors
/// [`Error::UnsupportedDType`] for element types that no collective reduces (quantised, bool, small integers).
pub(crate) fn wire_dtype(dtype: burn::tensor::DType) -> Result<DType> {
    use burn::tensor::DType as Burn;
    match dtype {
        Burn::F32 => Ok(DType::F32),
        Burn::F64 => Ok(DType::F64),
        Burn::F16 => Ok(DType::F16),
        Burn::BF16 => Ok(DType::BF16),
        Burn::I32 => Ok(DType::I32),
        Burn::I64 => Ok(DType::I64),
        Burn::U8 => Ok(DType::U8),
        other => Err(Error::UnsupportedDType { dtype: format!("{other:?}") }),
    }
}
