//! Sixteen f32 values at once, on whatever the processor has.
//!
//! What computes is written once over [`Simd`], as a [`Job`]; [`Isa::dispatch`] compiles it for each instruction set and
//! takes the one of this processor.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

pub(super) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// Values in one vector, on every instruction set: channels are blocked by as many.
pub(super) const LANES: usize = 16;

/// Vectors of [`LANES`] values.
///
/// # Safety
///
/// Every function needs the processor to have the instructions of the type, and pointers to [`LANES`] values, aligned or
/// not.
pub(super) trait Simd: Copy {
    /// Such a vector.
    type V: Copy;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, value: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`; rounded once where the processor can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where one of them is no number.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Asks for a line of memory that is read soon; any address may be asked for.
    unsafe fn prefetch(from: *const f32);
    /// The smaller; `b` where one of them is no number.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
}

/// An instruction set that this processor has: no other can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa(Set);

/// Any instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// AVX-512 F: vectors of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA: pairs of vectors of 256 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every processor of the target has.
    Portable,
}

/// Something that computes with vectors.
pub(super) trait Job {
    /// What it gives.
    type Output;

    /// Computes. Implementations are `#[inline(always)]`, so that they are compiled with the instructions of the caller.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `S`; and what the job itself asks.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

impl Isa {
    /// Those that this processor has, the fastest first.
    pub(super) fn present() -> Vec<Self> {
        let mut present = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                present.push(Self(Set::Avx512));
            }
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                present.push(Self(Set::Avx2));
            }
        }
        present.push(Self(Set::Portable));
        present
    }

    /// The fastest that this processor has.
    pub(super) fn best() -> Self {
        Self::present()[0]
    }

    /// Which one it is.
    pub(super) fn set(self) -> Set {
        self.0
    }

    /// Runs a job with these instructions.
    ///
    /// # Safety
    ///
    /// What the job itself asks.
    pub(super) unsafe fn dispatch<J: Job>(self, job: J) -> J::Output {
        // SAFETY: the caller keeps the job's promises, and the processor has the instructions, else there were no such value.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => x86::run_avx512(job),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => x86::run_avx2(job),
                Set::Portable => job.run::<Portable>(),
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "AVX2",
            Set::Portable => "portable",
        })
    }
}
