//! Element-wise arithmetic on gradient bytes in a bucket.

use burn::tensor::Bytes;
use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::transport::DType;

/// `target += source`.
pub(crate) fn add(target: &mut [u8], source: &[u8], dtype: DType) {
    fn run<T: bytemuck::Pod>(target: &mut [u8], source: &[u8], add: impl Fn(T, T) -> T) {
        for (target, source) in
            cast_slice_mut::<u8, T>(target).iter_mut().zip(source.chunks_exact(size_of::<T>()))
        {
            *target = add(*target, bytemuck::pod_read_unaligned(source));
        }
    }
    match dtype {
        DType::F32 => run::<f32>(target, source, |a, b| a + b),
        DType::F64 => run::<f64>(target, source, |a, b| a + b),
        DType::F16 => run::<f16>(target, source, |a, b| f16::from_f32(a.to_f32() + b.to_f32())),
        DType::BF16 => run::<bf16>(target, source, |a, b| bf16::from_f32(a.to_f32() + b.to_f32())),
        DType::I32 | DType::I64 | DType::U8 => unreachable!("gradients are floats: {dtype:?}"),
    }
}

/// `target *= factor`.
pub(crate) fn scale(target: &mut [u8], factor: f64, dtype: DType) {
    match dtype {
        DType::F32 => cast_slice_mut::<u8, f32>(target).iter_mut().for_each(|x| *x *= factor as f32),
        DType::F64 => cast_slice_mut::<u8, f64>(target).iter_mut().for_each(|x| *x *= factor),
        DType::F16 => cast_slice_mut::<u8, f16>(target)
            .iter_mut()
            .for_each(|x| *x = f16::from_f32(x.to_f32() * factor as f32)),
        DType::BF16 => cast_slice_mut::<u8, bf16>(target)
            .iter_mut()
            .for_each(|x| *x = bf16::from_f32(x.to_f32() * factor as f32)),
        DType::I32 | DType::I64 | DType::U8 => unreachable!("gradients are floats: {dtype:?}"),
    }
}

/// Rounds `source` to the half-precision type `to`.
pub(crate) fn compress(source: &[u8], from: DType, to: DType) -> Bytes {
    let narrowed: Vec<f32>;
    let values: &[f32] = if from == DType::F32 {
        cast_slice(source)
    } else {
        let mut values = vec![0.0; source.len() / from.size_bytes()];
        widen(source, from, &mut values);
        narrowed = values;
        &narrowed
    };
    let mut rounded = vec![0u16; values.len()];
    narrow(values, cast_slice_mut(&mut rounded), to);
    Bytes::from_elems(rounded)
}

/// The reverse of [`compress`], into `target`.
pub(crate) fn decompress(source: &[u8], from: DType, target: &mut [u8], to: DType) {
    if to == DType::F32 {
        return widen(source, from, cast_slice_mut(target));
    }
    let mut widened: Vec<f32> = vec![0.0; source.len() / 2];
    widen(source, from, &mut widened);
    narrow(&widened, target, to);
}

/// Converts floats of any type to f32.
pub(crate) fn widen(source: &[u8], from: DType, target: &mut [f32]) {
    match from {
        DType::F32 => target.copy_from_slice(cast_slice(source)),
        DType::F64 => {
            let source = cast_slice::<u8, f64>(source).iter();
            target.iter_mut().zip(source).for_each(|(target, &value)| *target = value as f32);
        }
        DType::F16 => cast_slice::<u8, f16>(source).convert_to_f32_slice(target),
        DType::BF16 => cast_slice::<u8, bf16>(source).convert_to_f32_slice(target),
        DType::I32 | DType::I64 | DType::U8 => unreachable!("gradients are floats: {from:?}"),
    }
}

/// Rounds f32 to floats of any type.
pub(crate) fn narrow(source: &[f32], target: &mut [u8], to: DType) {
    match to {
        DType::F32 => cast_slice_mut(target).copy_from_slice(source),
        DType::F64 => {
            let target = cast_slice_mut::<u8, f64>(target).iter_mut();
            target.zip(source).for_each(|(target, &value)| *target = f64::from(value));
        }
        DType::F16 => cast_slice_mut::<u8, f16>(target).convert_from_f32_slice(source),
        DType::BF16 => cast_slice_mut::<u8, bf16>(target).convert_from_f32_slice(source),
        DType::I32 | DType::I64 | DType::U8 => unreachable!("gradients are floats: {to:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_bytes(values: &[f32]) -> Bytes {
        Bytes::from_elems(values.to_vec())
    }

    #[test]
    fn adding_reads_sources_at_any_alignment() {
        let mut target = f32_bytes(&[1.0, 2.0]);
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(&f32_bytes(&[0.5, -2.0]));
        add(&mut target, &shifted[1..], DType::F32);
        assert_eq!(cast_slice::<u8, f32>(&target), [1.5, 0.0]);
    }

    #[test]
    fn scaling_multiplies_every_element() {
        let mut target = f32_bytes(&[3.0, -8.0]);
        scale(&mut target, 0.25, DType::F32);
        assert_eq!(cast_slice::<u8, f32>(&target), [0.75, -2.0]);
    }

    #[test]
    fn compression_rounds_to_nearest_and_keeps_what_half_precision_holds() {
        // 1 + 2^-11 lies between two f16 values: round to even gives 1. 2^-9 steps exist in f16, not in bf16.
        let values = [1.0, 1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 512.0, -65504.0];
        let mut out = f32_bytes(&[0.0; 4]);
        decompress(&compress(&f32_bytes(&values), DType::F32, DType::F16), DType::F16, &mut out, DType::F32);
        assert_eq!(cast_slice::<u8, f32>(&out), [1.0, 1.0, 1.0 + 1.0 / 512.0, -65504.0]);
        decompress(
            &compress(&f32_bytes(&values), DType::F32, DType::BF16),
            DType::BF16,
            &mut out,
            DType::F32,
        );
        assert_eq!(cast_slice::<u8, f32>(&out), [1.0, 1.0, 1.0, -65536.0]);
    }
}
