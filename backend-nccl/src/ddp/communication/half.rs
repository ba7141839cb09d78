//! Gradients rounded to half precision on the wire.

use super::{CommunicationHook, GradientBucket, HookError};
use crate::ddp::arithmetic;
use crate::group::Reserved;
use crate::transport::DType;

/// A half-precision float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HalfType {
    /// IEEE half precision: 11 bits, up to 65504.
    F16,
    /// bfloat16: 8 bits, the range of f32.
    BF16,
}

/// Rounds gradients in f32 and f64 to a half type, averages them, and widens the result. Half-precision gradients travel
/// as they are.
///
/// The ranks' values are summed in f32 and the average is rounded once. PyTorch's `fp16_compress_hook` divides each
/// rank's values by the number of ranks after rounding, so that an f16 sum stays in range, and rounds each partial sum; here
/// no sum is ever formed in half, so that the average of values in range is in range, and small ones do not vanish in the
/// division. A gradient beyond 65504 becomes infinite in f16, on all ranks, as in PyTorch: a
/// [`GradScaler`](crate::amp::GradScaler) skips the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPrecision(pub HalfType);

impl HalfPrecision {
    fn dtype(self) -> DType {
        match self.0 {
            HalfType::F16 => DType::F16,
            HalfType::BF16 => DType::BF16,
        }
    }
}

impl CommunicationHook for HalfPrecision {
    fn name(&self) -> String {
        self.dtype().name().into()
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        let (dtype, half, op) = (bucket.dtype(), self.dtype(), bucket.op());
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Ok(collectives.all_reduce(bucket.bytes_mut(), dtype, op)?);
        }
        let mut rounded = arithmetic::compress(bucket.bytes(), dtype, half);
        collectives.all_reduce(&mut rounded, half, op)?;
        arithmetic::decompress(&rounded, half, bucket.bytes_mut(), dtype);
        Ok(())
    }
}
