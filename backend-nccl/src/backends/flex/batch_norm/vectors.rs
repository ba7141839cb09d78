//! Runs a loop compiled for the widest vectors of the machine it runs on.
//!
//! The crate is built for any x86-64, whose vectors hold four f32. The kernels are written as plain loops that the compiler
//! vectorises, so compiling the same loop again for AVX2 and AVX-512 is all it takes. None of them fuses a product with
//! a sum and each adds in the same order, so that every machine computes the same bits.

/// Work whose loops are worth wide vectors.
///
/// `run` and everything it calls must be `#[inline(always)]`: what is not inlined is compiled for any x86-64.
pub(super) trait Work {
    fn run(self);
}

/// Runs `work` on the widest vectors that this machine has.
pub(super) fn widest(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has AVX-512, as was just found.
            return unsafe { with_avx512(work) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, as was just found.
            return unsafe { with_avx2(work) };
        }
    }
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(work: impl Work) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(work: impl Work) {
    work.run();
}
