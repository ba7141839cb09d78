//! AVX-512 and AVX2.

use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm256_sub_ps,
    _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_set1_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{Job, Simd};

/// One vector of 512 bits.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

/// Two vectors of 256 bits.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

/// Runs a job with AVX-512.
///
/// # Safety
///
/// The processor has it; and what the job itself asks.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn run_avx512<J: Job>(job: J) -> J::Output {
    // SAFETY: the caller keeps both promises.
    unsafe { job.run::<Avx512>() }
}

/// Runs a job with AVX2 and FMA.
///
/// # Safety
///
/// The processor has them; and what the job itself asks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<J: Job>(job: J) -> J::Output {
    // SAFETY: the caller keeps both promises.
    unsafe { job.run::<Avx2>() }
}

// SAFETY of every block below: who calls has made sure of the instructions, and gives pointers to sixteen values.
macro_rules! simd {
    ($type:ty, $vector:ty, |$value:ident| $splat:expr, |$from:ident| $load:expr, |$to:ident, $stored:ident| $store:expr,
     $($name:ident($($arg:ident),*) = $op:expr;)*) => {
        #[allow(clippy::undocumented_unsafe_blocks, reason = "said once, above")]
        impl Simd for $type {
            type V = $vector;

            #[inline(always)]
            unsafe fn splat($value: f32) -> Self::V {
                unsafe { $splat }
            }

            #[inline(always)]
            unsafe fn load($from: *const f32) -> Self::V {
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn store($to: *mut f32, $stored: Self::V) {
                unsafe { $store }
            }

            #[inline(always)]
            unsafe fn prefetch(from: *const f32) {
                unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
            }

            $(
                #[inline(always)]
                unsafe fn $name($($arg: Self::V),*) -> Self::V {
                    unsafe { $op }
                }
            )*
        }
    };
}

simd! {
    Avx512, __m512, |value| _mm512_set1_ps(value), |from| _mm512_loadu_ps(from), |to, value| _mm512_storeu_ps(to, value),
    add(a, b) = _mm512_add_ps(a, b);
    sub(a, b) = _mm512_sub_ps(a, b);
    mul(a, b) = _mm512_mul_ps(a, b);
    fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
    max(a, b) = _mm512_max_ps(a, b);
    min(a, b) = _mm512_min_ps(a, b);
}

simd! {
    Avx2, (__m256, __m256),
    |value| { let value = _mm256_set1_ps(value); (value, value) },
    |from| (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))),
    |to, value| { _mm256_storeu_ps(to, value.0); _mm256_storeu_ps(to.add(8), value.1); },
    add(a, b) = (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
    sub(a, b) = (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
    mul(a, b) = (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
    fma(a, b, c) = (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
    max(a, b) = (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
    min(a, b) = (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
}
