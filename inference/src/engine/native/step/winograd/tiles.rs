//! Tiles on their way to products of transformed patches, and back.

use std::ops::Range;

use super::super::super::graph::Shape;
use super::super::super::simd::{Job, LANES, Simd};
use super::super::Context;
use super::Winograd;
use super::transform::{self, MOST};

/// Some tiles of a convolution, and memory for what they become.
pub(super) struct Tiles<'a> {
    pub(super) step: &'a Winograd,
    pub(super) context: &'a Context<'a>,
    /// Room for `[side * side, in blocks, tiles, LANES]`.
    pub(super) patches: *mut f32,
    /// Room for `[side * side, out blocks, tiles, LANES]`.
    pub(super) sums: *const f32,
    pub(super) tiles: Range<usize>,
}

/// Transforms patches of the input.
pub(super) struct Inputs<'a>(pub(super) &'a Tiles<'a>);

/// Transforms sums into the output.
pub(super) struct Outputs<'a>(pub(super) &'a Tiles<'a>);

impl Job for Inputs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller keeps the promises of the step.
        unsafe { if self.0.step.side == 4 { self.0.inputs::<S, 4>() } else { self.0.inputs::<S, 6>() } }
    }
}

impl Job for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller keeps the promises of the step.
        unsafe { if self.0.step.side == 4 { self.0.outputs::<S, 4>() } else { self.0.outputs::<S, 6>() } }
    }
}

/// The part of a patch that lies on an image; the rest is zeros. Places before the image wrap around, and are beyond its end.
///
/// # Safety
///
/// The processor has the instructions of `S`, and `image` is a block of channels of this size.
#[inline(always)]
unsafe fn patch<S: Simd, const SIDE: usize>(
    image: *const f32,
    [y, x]: [usize; 2],
    [height, width]: [usize; 2],
) -> [[S::V; MOST]; MOST] {
    // SAFETY: only pixels of the image are loaded.
    unsafe {
        let mut patch = [[S::splat(0.); MOST]; MOST];
        let inside = |at: usize, size: usize| at < size && size - at >= SIDE;
        if inside(y, height) && inside(x, width) {
            for (dy, row) in patch.iter_mut().take(SIDE).enumerate() {
                for (dx, value) in row.iter_mut().take(SIDE).enumerate() {
                    *value = S::load(image.add(((y + dy) * width + x + dx) * LANES));
                }
            }
            return patch;
        }
        for (dy, row) in patch.iter_mut().take(SIDE).enumerate() {
            let y = y.wrapping_add(dy);
            for (dx, value) in row.iter_mut().take(SIDE).enumerate() {
                let x = x.wrapping_add(dx);
                if y < height && x < width {
                    *value = S::load(image.add((y * width + x) * LANES));
                }
            }
        }
        patch
    }
}

impl Tiles<'_> {
    /// Where a value of the patch begins, of some blocks of channels.
    #[inline(always)]
    fn at(&self, value: usize, blocks: usize, block: usize, index: usize) -> usize {
        ((value * blocks + block) * self.tiles.len() + index) * LANES
    }

    /// # Safety
    ///
    /// As [`Step::run`](super::Step::run).
    #[inline(always)]
    unsafe fn inputs<S: Simd, const SIDE: usize>(&self) {
        let Shape { height, width, .. } = self.step.from;
        let blocks = self.step.from.blocks();
        let input = self.context.images(self.step.io.input).cast_const();
        for (index, tile) in self.tiles.clone().enumerate() {
            let [image, y, x] = self.step.tile(tile);
            let start = [y.wrapping_sub(self.step.before[0]), x.wrapping_sub(self.step.before[1])];
            for block in 0..blocks {
                let at = image * self.context.stride(self.step.io.input) + block * height * width * LANES;
                // SAFETY: the block lies in the image, and the patches have room for each block and tile.
                unsafe {
                    let mut patch = patch::<S, SIDE>(input.add(at), start, [height, width]);
                    for row in patch.iter_mut().take(SIDE) {
                        *row = transform::input::<S, SIDE>(*row);
                    }
                    for column in 0..SIDE {
                        let values = transform::input::<S, SIDE>(patch.map(|row| row[column]));
                        for (row, value) in values.into_iter().take(SIDE).enumerate() {
                            let at = self.at(row * SIDE + column, blocks, block, index);
                            S::store(self.patches.add(at), value);
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// As [`Step::run`](super::Step::run).
    #[inline(always)]
    unsafe fn outputs<S: Simd, const SIDE: usize>(&self) {
        let blocks = self.step.to.blocks();
        for (index, tile) in self.tiles.clone().enumerate() {
            for block in 0..blocks {
                // SAFETY: the sums are there for each block and tile.
                unsafe {
                    let mut rows = [[S::splat(0.); MOST]; MOST];
                    for column in 0..SIDE {
                        let mut sums = [S::splat(0.); MOST];
                        for (row, sum) in sums.iter_mut().take(SIDE).enumerate() {
                            *sum = S::load(self.sums.add(self.at(row * SIDE + column, blocks, block, index)));
                        }
                        for (row, value) in rows.iter_mut().zip(transform::output::<S, SIDE>(sums)) {
                            row[column] = value;
                        }
                    }
                    self.store::<S, SIDE>(self.step.tile(tile), block, rows);
                }
            }
        }
    }

    /// Stores what lies on the image of a tile that is transformed by column.
    ///
    /// # Safety
    ///
    /// As [`Step::run`](super::Step::run).
    #[inline(always)]
    unsafe fn store<S: Simd, const SIDE: usize>(
        &self,
        [image, y, x]: [usize; 3],
        block: usize,
        rows: [[S::V; MOST]; MOST],
    ) {
        let Shape { height, width, .. } = self.step.to;
        let io = self.step.io;
        let out = self.context.images(io.out);
        let residual = io.residual.map(|residual| self.context.images(residual).cast_const());
        let start = image * self.context.stride(io.out) + block * height * width * LANES;
        // SAFETY: what is stored lies in the image; there is a bias for whole blocks.
        unsafe {
            let bias = S::load(self.step.bias[block * LANES..].as_ptr());
            for (dy, row) in rows.into_iter().take((SIDE - 2).min(height - y)).enumerate() {
                let values = transform::output::<S, SIDE>(row);
                for (dx, value) in values.into_iter().take((SIDE - 2).min(width - x)).enumerate() {
                    let at = start + ((y + dy) * width + x + dx) * LANES;
                    let mut value = S::add(value, bias);
                    if let Some(residual) = residual {
                        value = S::add(value, S::load(residual.add(at)));
                    }
                    if let Some(activation) = self.step.activation {
                        value = activation.apply::<S>(value);
                    }
                    S::store(out.add(at), value);
                }
            }
        }
    }
}
