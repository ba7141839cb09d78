//! The kernels for AVX-512 and AVX2, and what they need of f16.

use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_storeu_ps,
};

use super::{
    super::{DType, ReduceOp},
    element::Half,
    kernel::{Halves, Portable, each},
};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
pub(super) unsafe fn with_avx512(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    // SAFETY: handed on to the caller.
    unsafe { each::<Sixteen>(dtype, op, sources, targets, count) }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn with_avx2(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    // SAFETY: handed on to the caller.
    unsafe { each::<Eight>(dtype, op, sources, targets, count) }
}

/// Sixteen values at a time. Only for functions that have AVX-512.
struct Sixteen;

/// Eight values at a time. Only for functions that have F16C.
struct Eight;

impl Halves for Sixteen {
    #[inline(always)]
    fn widen<const N: usize>(from: &[Half; N]) -> [f32; N] {
        if !N.is_multiple_of(16) {
            return Eight::widen(from);
        }
        let mut to = [0.0f32; N];
        for i in (0..N).step_by(16) {
            // SAFETY: sixteen elements on both sides, and the caller has AVX-512.
            unsafe {
                let halves = _mm256_loadu_si256(from.as_ptr().add(i).cast());
                _mm512_storeu_ps(to.as_mut_ptr().add(i), _mm512_cvtph_ps(halves));
            }
        }
        to
    }
    #[inline(always)]
    fn narrow<const N: usize>(from: &[f32; N]) -> [Half; N] {
        if !N.is_multiple_of(16) {
            return Eight::narrow(from);
        }
        let mut to = [Half(0); N];
        for i in (0..N).step_by(16) {
            // SAFETY: as above.
            unsafe {
                let wide = _mm512_loadu_ps(from.as_ptr().add(i));
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm256_storeu_si256(to.as_mut_ptr().add(i).cast(), halves);
            }
        }
        to
    }
}

impl Halves for Eight {
    #[inline(always)]
    fn widen<const N: usize>(from: &[Half; N]) -> [f32; N] {
        if !N.is_multiple_of(8) {
            return Portable::widen(from);
        }
        let mut to = [0.0f32; N];
        for i in (0..N).step_by(8) {
            // SAFETY: eight elements on both sides, and the caller has F16C.
            unsafe {
                let halves = _mm_loadu_si128(from.as_ptr().add(i).cast());
                _mm256_storeu_ps(to.as_mut_ptr().add(i), _mm256_cvtph_ps(halves));
            }
        }
        to
    }
    #[inline(always)]
    fn narrow<const N: usize>(from: &[f32; N]) -> [Half; N] {
        if !N.is_multiple_of(8) {
            return Portable::narrow(from);
        }
        let mut to = [Half(0); N];
        for i in (0..N).step_by(8) {
            // SAFETY: as above.
            unsafe {
                let wide = _mm256_loadu_ps(from.as_ptr().add(i));
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(to.as_mut_ptr().add(i).cast(), halves);
            }
        }
        to
    }
}
