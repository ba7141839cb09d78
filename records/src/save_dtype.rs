use std::borrow::Cow;

use burn::tensor::{DType, bf16, f16};
use bytemuck::Pod;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use rayon::prelude::*;

use crate::error::{Error, Result};

/// The float type in which parameters are stored.
///
/// Only floats of two dimensions or more are rounded. What has fewer stays as it is: the scales and statistics of norms,
/// of which a variance easily leaves the range of f16, and biases; together they are a thousandth of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveDType {
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

impl SaveDType {
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
    let half = Half::of(to);
    let chunks = source.par_chunks(CHUNK * from.size()).zip(target.par_chunks_mut(CHUNK));
    let largest = chunks.map(|(source, target)| half.round(source, from, target)).reduce(|| 0.0, f64::max);
    // Only a finite value that became an infinity is infinitely wrong.
    match largest.is_finite() {
        true => Ok(largest),
        false => Err(half.first_too_large(source, from)),
    }
}

#[derive(Clone, Copy)]
enum Half {
    F16,
    BF16,
}

impl Half {
    fn of(dtype: DType) -> Self {
        if dtype == DType::BF16 { Self::BF16 } else { Self::F16 }
    }

    /// Rounds a chunk, and returns its largest error.
    fn round(self, source: &[u8], from: DType, target: &mut [u16]) -> f64 {
        let singles = singles(source, from);
        let mut back = [0.0; CHUNK];
        let back = &mut back[..singles.len()];
        self.narrow(&singles, target);
        self.widen(target, back);
        match from {
            DType::F64 => largest(
                typed::<f64>(source).iter().zip(back).map(|(value, back)| (value - f64::from(*back)).abs()),
            ),
            _ => largest(singles.iter().zip(back).map(|(value, back)| (value - *back).abs())).into(),
        }
    }

    fn narrow(self, source: &[f32], target: &mut [u16]) {
        match self {
            Self::F16 => target.reinterpret_cast_mut::<f16>().convert_from_f32_slice(source),
            Self::BF16 => target.iter_mut().zip(source).for_each(|(half, value)| *half = bf16_bits(*value)),
        }
    }

    fn widen(self, source: &[u16], target: &mut [f32]) {
        match self {
            Self::F16 => source.reinterpret_cast::<f16>().convert_to_f32_slice(target),
            Self::BF16 => {
                let widen = |(value, half): (&mut f32, &u16)| *value = f32::from_bits(u32::from(*half) << 16);
                target.iter_mut().zip(source).for_each(widen);
            }
        }
    }

    /// The first finite value of `source` that rounds to an infinity.
    fn first_too_large(self, source: &[u8], from: DType) -> f64 {
        let overflows =
            |values: &&[u8]| self.round(values, from, &mut vec![0; values.len() / from.size()]).is_infinite();
        // The chunk first: to round value by value is slow.
        let chunk = source.chunks(CHUNK * from.size()).find(overflows).unwrap_or_default();
        match chunk.chunks(from.size()).find(overflows) {
            Some(value) if from == DType::F64 => typed(value)[0],
            Some(value) => singles(value, from)[0].into(),
            None => f64::INFINITY,
        }
    }
}

/// To the nearest, and to the even one of two; written so that it runs on vectors.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet_nan = bits >> 16 | 0x40;
    (if value.is_nan() { quiet_nan } else { rounded }) as u16
}

/// NaN, which is the difference of equal infinities, counts as no error.
fn largest<T: Default + PartialOrd>(errors: impl Iterator<Item = T>) -> T {
    errors.fold(T::default(), |largest, error| if error > largest { error } else { largest })
}

/// Floats as f32, exact but for f64.
fn singles(source: &[u8], from: DType) -> Cow<'_, [f32]> {
    match from {
        DType::F64 => typed::<f64>(source).iter().map(|value| *value as f32).collect(),
        DType::F16 => typed::<f16>(source).to_f32_vec().into(),
        DType::BF16 => typed::<bf16>(source).to_f32_vec().into(),
        _ => typed(source),
    }
}

/// Bytes as values; those of a file may lie at any address.
fn typed<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => values.into(),
        Err(_) => bytemuck::pod_collect_to_vec(bytes).into(),
    }
}

/// The error for a tensor that holds `value`.
pub(crate) fn overflow(tensor: &str, value: f64, to: DType) -> Error {
    Error::Overflow { tensor: tensor.into(), value, dtype: to.name() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        // Every exponent with mantissas around each kind of tie, NaN and infinities among them.
        let tails = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1_8000, 0x2_7FFF, 0x7F_8000, 0x7F_FFFF];
        for bits in
            (0..=0x1FF_u32).flat_map(|sign_and_exponent| tails.map(|tail| sign_and_exponent << 23 | tail))
        {
            let value = f32::from_bits(bits);
            assert_eq!(bf16_bits(value), bf16::from_f32(value).to_bits(), "{bits:x}");
        }
    }

    #[test]
    fn the_first_value_too_large_is_found_in_every_type() {
        let mut values = vec![1.0_f64; 3 * CHUNK];
        values[2 * CHUNK + 5] = f64::NEG_INFINITY;
        values[2 * CHUNK + 7] = -7e4;
        values[2 * CHUNK + 9] = 8e4;
        let mut target = vec![0; values.len()];
        let singles: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        let brains: Vec<bf16> = values.iter().map(|value| bf16::from_f64(*value)).collect();
        let mut round = |bytes: &[u8], from| super::round(bytes, from, DType::F16, &mut target);
        assert_eq!(round(bytemuck::cast_slice(&values), DType::F64), Err(-7e4));
        assert_eq!(round(bytemuck::cast_slice(&singles), DType::F32), Err(-7e4));
        assert_eq!(round(bytemuck::cast_slice(&brains), DType::BF16), Err(bf16::from_f64(-7e4).to_f64()));
        assert_eq!(
            super::round(bytemuck::cast_slice(&[1e300_f64]), DType::F64, DType::BF16, &mut [0]),
            Err(1e300)
        );
        // The middle between 65504 and the next power of two is the first to round up.
        assert_eq!(super::round(&65519.0_f32.to_le_bytes(), DType::F32, DType::F16, &mut [0]), Ok(15.0));
        assert_eq!(super::round(&65520.0_f32.to_le_bytes(), DType::F32, DType::F16, &mut [0]), Err(65520.0));
    }

    #[test]
    fn values_at_odd_addresses_round_all_the_same() {
        let bytes: Vec<u8> = std::iter::once(0).chain(1.5_f32.to_le_bytes()).collect();
        let mut target = [0];
        assert_eq!(super::round(&bytes[1..], DType::F32, DType::F16, &mut target), Ok(0.0));
        assert_eq!(target, [f16::from_f32(1.5).to_bits()]);
    }
}
