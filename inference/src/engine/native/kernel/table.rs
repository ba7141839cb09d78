//! The kernel for each number of pixels and blocks, and for each instruction set.

#[cfg(target_arch = "x86_64")]
use super::super::simd::{Avx2, Avx512};
use super::super::simd::{Isa, LANES, Portable, Set};
use super::tile::{Tile, compute};

/// Computes a [`Tile`], under the promises that its formula asks.
pub(in super::super) type Kernel = unsafe fn(&Tile);

/// The kernels of one instruction set. As many sums are kept as it has registers for.
pub(in super::super) struct Kernels {
    /// Most output pixels at a time.
    pub(in super::super) pixels: usize,
    /// Most blocks of output channels at a time.
    pub(in super::super) blocks: usize,
    /// For pixels side by side, for every second one, and for others: of each number of blocks, less one, those of each
    /// number of pixels, less one.
    steps: [&'static [&'static [Kernel]]; 3],
}

/// Distance of every second pixel.
const SECOND: usize = 2 * LANES;

impl Kernels {
    /// Those of an instruction set.
    pub(in super::super) fn of(isa: Isa) -> &'static Self {
        match isa.set() {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => &AVX2,
            Set::Portable => &PORTABLE,
        }
    }

    /// The kernels of a number of blocks, by the number of pixels less one, for pixels at this distance and runs of this
    /// many inputs.
    pub(in super::super) fn by_pixels(&self, blocks: usize, step: usize, inner: usize) -> &'static [Kernel] {
        let of = match (step, inner) {
            (LANES, LANES) => self.steps[0],
            (SECOND, LANES) => self.steps[1],
            _ => self.steps[2],
        };
        of[blocks - 1]
    }
}

macro_rules! steps {
    ($entry:ident, [$($blocks:literal)*], $pixels:tt) => {
        [
            &[$(steps!(@row $entry, $blocks, LANES, $pixels)),*],
            &[$(steps!(@row $entry, $blocks, SECOND, $pixels)),*],
            &[$(steps!(@row $entry, $blocks, 0, $pixels)),*],
        ]
    };
    (@row $entry:ident, $blocks:literal, $step:expr, [$($pixels:literal)*]) => {
        &[$($entry::<$pixels, $blocks, { $step }>),*]
    };
}

/// 28 sums, two weights and one input in 32 registers.
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels =
    Kernels { pixels: 14, blocks: 2, steps: steps!(tile_avx512, [1 2], [1 2 3 4 5 6 7 8 9 10 11 12 13 14]) };

/// 12 sums, two weights and one input in 16 registers; a block takes two.
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = Kernels { pixels: 6, blocks: 1, steps: steps!(tile_avx2, [1], [1 2 3 4 5 6]) };

/// Eight sums and four weights in the 16 registers of SSE2; a block takes four.
static PORTABLE: Kernels = Kernels { pixels: 2, blocks: 1, steps: steps!(tile_portable, [1], [1 2]) };

/// # Safety
///
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn tile_avx512<const PIXELS: usize, const BLOCKS: usize, const STEP: usize>(tile: &Tile) {
    // SAFETY: the caller keeps the promises of `compute`.
    unsafe { compute::<Avx512, PIXELS, BLOCKS, STEP>(tile) }
}

/// # Safety
///
/// As [`compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const PIXELS: usize, const BLOCKS: usize, const STEP: usize>(tile: &Tile) {
    // SAFETY: the caller keeps the promises of `compute`.
    unsafe { compute::<Avx2, PIXELS, BLOCKS, STEP>(tile) }
}

/// # Safety
///
/// As [`compute`].
unsafe fn tile_portable<const PIXELS: usize, const BLOCKS: usize, const STEP: usize>(tile: &Tile) {
    // SAFETY: the caller keeps the promises of `compute`.
    unsafe { compute::<Portable, PIXELS, BLOCKS, STEP>(tile) }
}
