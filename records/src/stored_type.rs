use burn::tensor::{DType, bf16, f16};
use bytemuck::{AnyBitPattern, Pod};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::error::{Error, Result};

/// The float type in which parameters are stored.
///
/// Only floats of two dimensions or more are rounded. What has fewer stays as it is: the scales and statistics of norms,
/// of which a variance easily leaves the range of f16, and biases; together they are a thousandth of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredType {
    /// Each parameter in the type it has.
    #[default]
    Keep,
    /// IEEE half precision: 11 significant bits, up to 65504. A larger value is an error.
    F16,
    /// bfloat16: 8 significant bits, the range of f32.
    BF16,
}

/// Values that one thread rounds at a time: small enough for its cache.
const CHUNK: usize = 1 << 14;

impl StoredType {
    /// The type in which a tensor is stored.
    pub(crate) fn of(self, dtype: DType, rank: usize) -> DType {
        match self {
            Self::F16 if dtype.is_float() && rank >= 2 => DType::F16,
            Self::BF16 if dtype.is_float() && rank >= 2 => DType::BF16,
            _ => dtype,
        }
    }
}

/// Rounds `source`, floats of type `from`, to `to`, which is f16 or bf16, and returns the largest error.
///
/// NaN stays NaN and an infinity an infinity.
///
/// # Errors
///
/// The first finite value that `to` has no room for.
pub(crate) fn round(source: &[u8], from: DType, to: DType, target: &mut [u16]) -> Result<f64, f64> {
    let chunk = CHUNK * from.size();
    let largest = source
        .par_chunks(chunk)
        .zip(target.par_chunks_mut(CHUNK))
        .map(|(source, target)| match to {
            DType::BF16 => round_chunk::<bf16>(source, from, bytemuck::cast_slice_mut(target)),
            _ => round_chunk::<f16>(source, from, bytemuck::cast_slice_mut(target)),
        })
        .reduce(|| 0.0, f64::max);
    if largest.is_finite() {
        return Ok(largest);
    }
    // Only a finite value that became an infinity is infinitely wrong.
    let fits = |value: f64| match to {
        DType::BF16 => bf16::from_f64(value).is_finite(),
        _ => f16::from_f64(value).is_finite(),
    };
    Err(widened(source, from).find(|&value| value.is_finite() && !fits(value)).unwrap_or(f64::INFINITY))
}

fn round_chunk<H: Copy>(source: &[u8], from: DType, target: &mut [H]) -> f64
where
    [H]: HalfFloatSliceExt,
{
    match from {
        DType::F64 => {
            let mut back = [0.0; CHUNK];
            let source = typed(source);
            target.convert_from_f64_slice(&source);
            target.convert_to_f64_slice(&mut back[..target.len()]);
            largest_error(&source, &back, |a: f64, b| (a - b).abs())
        }
        _ => {
            let mut back = [0.0; CHUNK];
            let source = singles(source, from);
            target.convert_from_f32_slice(&source);
            target.convert_to_f32_slice(&mut back[..target.len()]);
            f64::from(largest_error(&source, &back, |a: f32, b| (a - b).abs()))
        }
    }
}

/// NaN, which is the difference of equal infinities, counts as none.
fn largest_error<T: Copy + Default + PartialOrd>(a: &[T], b: &[T], error: impl Fn(T, T) -> T) -> T {
    let errors = a.iter().zip(b).map(|(&a, &b)| error(a, b));
    errors.fold(T::default(), |largest, error| if error > largest { error } else { largest })
}

/// Floats of at most 32 bits as f32, which is exact.
fn singles(source: &[u8], from: DType) -> std::borrow::Cow<'_, [f32]> {
    match from {
        DType::F16 => typed::<f16>(source).to_f32_vec().into(),
        DType::BF16 => typed::<bf16>(source).to_f32_vec().into(),
        _ => typed(source),
    }
}

fn widened(source: &[u8], from: DType) -> Box<dyn Iterator<Item = f64> + '_> {
    match from {
        DType::F64 => Box::new(typed::<f64>(source).into_owned().into_iter()),
        _ => Box::new(singles(source, from).into_owned().into_iter().map(f64::from)),
    }
}

/// Bytes as values; those of a file may lie at any address.
fn typed<T: Pod + AnyBitPattern>(bytes: &[u8]) -> std::borrow::Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => values.into(),
        Err(_) => bytemuck::pod_collect_to_vec(bytes).into(),
    }
}

/// The error for a tensor that holds `value`.
pub(crate) fn overflow(tensor: &str, value: f64, to: DType) -> Error {
    Error::Overflow { tensor: tensor.into(), value, dtype: to.name() }
}
