//! The kernel.

use super::super::simd::{LANES, Simd};

/// What is done with a sum: kept between two bounds. `relu` is `[0, inf]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Activation {
    /// The lower bound.
    pub(in super::super) low: f32,
    /// The upper bound.
    pub(in super::super) high: f32,
}

impl Activation {
    /// `max(x, 0)`.
    pub(in super::super) const RELU: Self = Self { low: 0., high: f32::INFINITY };

    /// Bounds a vector. What is no number stays so.
    #[inline(always)]
    pub(in super::super) unsafe fn apply<S: Simd>(self, value: S::V) -> S::V {
        // SAFETY: the caller has the instructions of S.
        unsafe {
            let value = S::max(S::splat(self.low), value);
            if self.high < f32::INFINITY { S::min(S::splat(self.high), value) } else { value }
        }
    }
}

/// `PIXELS` output pixels of `BLOCKS` blocks of output channels.
///
/// `out[i, b] = activation(bias[b] + sum over r, j of x[i * step + offsets[r] + j] * weights[r, j, b] + residual[i, b])`,
/// where `b` counts blocks of [`LANES`] channels. A sum runs in the order of `r`, then `j`, whatever the number of pixels
/// and blocks, so that a pixel's value does not depend on what it is computed with.
///
/// The order of weights is `[offsets, inner, BLOCKS, LANES]`, so that they are read from start to end.
pub(in super::super) struct Tile {
    /// The first pixel.
    pub(in super::super) x: *const f32,
    /// Distance of two pixels.
    pub(in super::super) step: usize,
    /// Where the runs of inputs begin, counted from a pixel.
    pub(in super::super) offsets: *const usize,
    /// How many there are.
    pub(in super::super) runs: usize,
    /// Inputs in a run.
    pub(in super::super) inner: usize,
    /// The weights.
    pub(in super::super) weights: *const f32,
    /// Weights that are asked for on the way, two lines for each [`GROUP`] of inputs: those of the next set.
    pub(in super::super) ahead: *const f32,
    /// `[BLOCKS, LANES]`, or null for zeros.
    pub(in super::super) bias: *const f32,
    /// The first pixel of the first block.
    pub(in super::super) out: *mut f32,
    /// Laid out as `out`, or null for zeros. May be `out` itself.
    pub(in super::super) residual: *const f32,
    /// Distance of two pixels in `out`.
    pub(in super::super) out_step: usize,
    /// Distance of two blocks in `out`.
    pub(in super::super) out_block: usize,
    /// What is done with the sum.
    pub(in super::super) activation: Option<Activation>,
}

/// Computes a tile: of pixels at this distance, with runs of [`LANES`] inputs; or, with a `STEP` of 0, of any.
///
/// # Safety
///
/// The processor has the instructions of `S`; the pointers lead to what the formula reads and writes, and no one else
/// reads or writes `out` meanwhile.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd, const PIXELS: usize, const BLOCKS: usize, const STEP: usize>(
    tile: &Tile,
) {
    // SAFETY: the caller keeps the promises above.
    unsafe {
        let step = if STEP == 0 { tile.step } else { STEP };
        let mut sums = biases::<S, PIXELS, BLOCKS>(tile);
        let mut weights = tile.weights;
        let mut ahead = tile.ahead;
        for run in 0..tile.runs {
            let mut x = tile.x.add(*tile.offsets.add(run));
            // Runs lie apart, so that the processor does not foresee where the next begins.
            let next = tile.x.add(*tile.offsets.add((run + 1).min(tile.runs - 1)));
            for pixel in 0..PIXELS {
                S::prefetch(next.wrapping_add(pixel * step));
            }
            let group = if STEP == 0 { 1 } else { GROUP };
            for _ in 0..tile.inner / group {
                for at in 0..group {
                    products::<S, PIXELS, BLOCKS>(
                        &mut sums,
                        x.add(at),
                        step,
                        weights.add(at * BLOCKS * LANES),
                    );
                }
                S::prefetch(ahead);
                S::prefetch(ahead.wrapping_add(LANES));
                ahead = ahead.wrapping_add(2 * LANES);
                weights = weights.add(group * BLOCKS * LANES);
                x = x.add(group);
            }
        }
        finish::<S, PIXELS, BLOCKS>(tile, &sums);
    }
}

/// What sums begin with.
///
/// # Safety
///
/// As [`compute`].
#[inline(always)]
unsafe fn biases<S: Simd, const PIXELS: usize, const BLOCKS: usize>(tile: &Tile) -> [[S::V; BLOCKS]; PIXELS] {
    // SAFETY: the caller of `compute` gives a bias for each block, or null.
    unsafe {
        let mut sums = [[S::splat(0.); BLOCKS]; PIXELS];
        if !tile.bias.is_null() {
            for sums in &mut sums {
                for (block, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(tile.bias.add(block * LANES));
                }
            }
        }
        sums
    }
}

/// Inputs of a run that are computed without a jump between: of a core that another guest shares, jumps and sums of
/// addresses take what the products need.
const GROUP: usize = 4;

/// Adds the products of one input of each pixel.
///
/// # Safety
///
/// As [`compute`].
#[inline(always)]
unsafe fn products<S: Simd, const PIXELS: usize, const BLOCKS: usize>(
    sums: &mut [[S::V; BLOCKS]; PIXELS],
    x: *const f32,
    step: usize,
    weights: *const f32,
) {
    // SAFETY: the caller of `compute` gives an input for each pixel and weights for each block.
    unsafe {
        let mut row = [S::splat(0.); BLOCKS];
        for (block, row) in row.iter_mut().enumerate() {
            *row = S::load(weights.add(block * LANES));
        }
        for (pixel, sums) in sums.iter_mut().enumerate() {
            let x = S::splat(*x.add(pixel * step));
            for (sum, weights) in sums.iter_mut().zip(row) {
                *sum = S::fma(x, weights, *sum);
            }
        }
    }
}

/// Adds, bounds and stores the sums.
///
/// # Safety
///
/// As [`compute`].
#[inline(always)]
unsafe fn finish<S: Simd, const PIXELS: usize, const BLOCKS: usize>(
    tile: &Tile,
    sums: &[[S::V; BLOCKS]; PIXELS],
) {
    for (pixel, sums) in sums.iter().enumerate() {
        for (block, sum) in sums.iter().enumerate() {
            let at = pixel * tile.out_step + block * tile.out_block;
            // SAFETY: the caller of `compute` gives room for each pixel and block, in the residual too where there is one.
            unsafe {
                let mut sum = *sum;
                if !tile.residual.is_null() {
                    sum = S::add(sum, S::load(tile.residual.add(at)));
                }
                if let Some(activation) = tile.activation {
                    sum = activation.apply::<S>(sum);
                }
                S::store(tile.out.add(at), sum);
            }
        }
    }
}
