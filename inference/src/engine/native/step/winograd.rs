//! Convolutions of 3x3 with fewer products.

use std::ops::Range;

use super::super::graph::{Conv, Shape, Window};
use super::super::kernel::{Activation, Kernels, Tile};
use super::super::memory::Memory;
use super::super::simd::{Job, LANES, Simd};
use super::packed::{Set, Weights, ahead, by_block, room};
use super::transform::{self, MOST};
use super::{Context, Io, Step};

/// Values of transformed patches and sums that are kept at a time: they stay in the cache of a core.
const CACHED: usize = 224 << 10;

/// A convolution of 3x3 in tiles, each of which is computed from a patch.
pub(in super::super) struct Winograd {
    io: Io,
    from: Shape,
    to: Shape,
    before: [usize; 2],
    /// Of the patch; tiles are two smaller.
    side: usize,
    sets: Vec<Set>,
    /// `[side * side, sets, in channels, blocks of the set, LANES]`.
    weights: Memory,
    /// Of one value of the patch.
    weights_step: usize,
    bias: Vec<f32>,
    activation: Option<Activation>,
    /// Most tiles at a time.
    tiles: usize,
}

impl Winograd {
    /// The side of the patch with which a convolution is faster than directly. Larger ones need fewer products, but more
    /// memory for the weights.
    pub(in super::super) fn side(conv: &Conv<'_>, to: Shape) -> Option<usize> {
        let Window { kernel, stride, dilation, .. } = conv.window;
        let fits = kernel == [3, 3] && stride == [1, 1] && dilation == [1, 1] && conv.groups == 1;
        let channels = conv.in_channels.min(conv.out_channels);
        let product = conv.in_channels.saturating_mul(conv.out_channels);
        if !fits || channels < 2 * LANES {
            return None;
        }
        let smaller = to.height.min(to.width);
        match (product, smaller) {
            (..=LARGE, 12..) => Some(6),
            (..=MEDIUM, 6..) => Some(4),
            _ => None,
        }
    }

    /// Transforms and packs the weights.
    pub(in super::super) fn new(
        conv: &Conv<'_>,
        io: Io,
        [from, to]: [Shape; 2],
        side: usize,
        kernels: &Kernels,
    ) -> Result<Self, String> {
        let mut sets = Set::split(conv, kernels.blocks);
        let rows = from.blocks() * LANES;
        for set in &mut sets {
            set.weights = set.block * rows * LANES;
        }
        let weights_step = rows * to.blocks() * LANES;
        let mut winograd = Self {
            io,
            from,
            to,
            before: conv.window.before,
            side,
            sets,
            weights: room(weights_step.checked_mul(side * side))?,
            weights_step,
            bias: by_block(&conv.bias),
            activation: conv.activation,
            tiles: 0,
        };
        let values = side * side * (from.blocks() + to.blocks()) * LANES;
        let all = to.height.div_ceil(side - 2).saturating_mul(to.width.div_ceil(side - 2));
        winograd.tiles = (CACHED / values).max(kernels.pixels).min(all);
        winograd.pack(&Weights::of(conv), conv.in_channels);
        Ok(winograd)
    }

    fn pack(&mut self, weights: &Weights, in_channels: usize) {
        let packed = self.weights.as_mut();
        for set in &self.sets {
            for input in 0..in_channels {
                for lane in 0..set.blocks * LANES {
                    let out = set.block * LANES + lane;
                    let kernel = [0, 1, 2].map(|y| [0, 1, 2].map(|x| weights.at(out, input, y, x)));
                    let transformed = transform::weights(self.side, kernel);
                    let at = set.weights + input * set.blocks * LANES + lane;
                    for y in 0..self.side {
                        for x in 0..self.side {
                            packed[(y * self.side + x) * self.weights_step + at] = transformed[y][x] as f32;
                        }
                    }
                }
            }
        }
    }

    /// Tiles in a column and in a row.
    fn grid(&self) -> [usize; 2] {
        [self.to.height.div_ceil(self.side - 2), self.to.width.div_ceil(self.side - 2)]
    }

    /// The image of a tile and its first row and column.
    #[inline(always)]
    fn tile(&self, tile: usize) -> [usize; 3] {
        let [rows, columns] = self.grid();
        let (row, column) = (tile / columns, tile % columns);
        [row / rows, row % rows * (self.side - 2), column * (self.side - 2)]
    }

    /// Products of the transformed patches and weights, for each value of the patch by itself.
    ///
    /// # Safety
    ///
    /// `patches` holds `[side * side, in blocks, tiles, LANES]` and `sums` is room for `[side * side, out blocks, tiles,
    /// LANES]`.
    unsafe fn products(&self, kernels: &Kernels, patches: *const f32, sums: *mut f32, tiles: usize) {
        let offsets: Vec<_> = (0..self.from.blocks()).map(|block| block * tiles * LANES).collect();
        let parts = tiles.div_ceil(kernels.pixels);
        for value in 0..self.side * self.side {
            for set in &self.sets {
                let kernels = kernels.by_pixels(set.blocks, LANES, LANES);
                for part in 0..parts {
                    let (first, end) = (part * tiles / parts, (part + 1) * tiles / parts);
                    let from = value * self.from.blocks() * tiles * LANES + first * LANES;
                    let to = (value * self.to.blocks() + set.block) * tiles * LANES + first * LANES;
                    let weights =
                        self.weights.pointer().wrapping_add(value * self.weights_step + set.weights);
                    let size = self.from.blocks() * LANES * set.blocks * LANES;
                    // SAFETY: the caller gives the patches and room for the sums; each set has its weights.
                    unsafe {
                        kernels[end - first - 1](&Tile {
                            x: patches.add(from),
                            step: LANES,
                            offsets: offsets.as_ptr(),
                            runs: offsets.len(),
                            inner: LANES,
                            weights,
                            ahead: ahead(weights, size, part, set.blocks),
                            bias: std::ptr::null(),
                            out: sums.add(to),
                            residual: std::ptr::null(),
                            out_step: LANES,
                            out_block: tiles * LANES,
                            activation: None,
                        });
                    }
                }
            }
        }
    }
}

/// With at most so many products of channels the larger patch is faster, and the smaller one.
const LARGE: usize = 128 * 128;
const MEDIUM: usize = 256 * 256;

impl Step for Winograd {
    unsafe fn run(&self, context: &Context<'_>) {
        let [rows, columns] = self.grid();
        let part = context.part(context.batch * rows * columns);
        let chunks = part.len().div_ceil(self.tiles);
        for chunk in 0..chunks {
            let at = |chunk: usize| part.start + chunk * part.len() / chunks;
            let tiles = at(chunk)..at(chunk + 1);
            let patches = context.scratch;
            // SAFETY: the scratch holds the patches and sums of `self.tiles` tiles; the tiles are this thread's alone.
            unsafe {
                let sums = patches.add(self.side * self.side * self.from.blocks() * LANES * self.tiles);
                let job =
                    |stage| Transform { step: self, context, patches, sums, tiles: tiles.clone(), stage };
                context.isa.dispatch(job(Stage::Input));
                self.products(context.kernels, patches, sums, tiles.len());
                context.isa.dispatch(job(Stage::Output));
            }
        }
    }

    fn scratch(&self) -> usize {
        self.side * self.side * (self.from.blocks() + self.to.blocks()) * LANES * self.tiles
    }
}

/// Which transform.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Input,
    Output,
}

/// The transform of some tiles, by block of channels.
struct Transform<'a> {
    step: &'a Winograd,
    context: &'a Context<'a>,
    patches: *mut f32,
    sums: *const f32,
    tiles: Range<usize>,
    stage: Stage,
}

impl Job for Transform<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller keeps the promises of the step.
        unsafe {
            match (self.stage, self.step.side) {
                (Stage::Input, 4) => self.inputs::<S, 4>(),
                (Stage::Input, _) => self.inputs::<S, 6>(),
                (Stage::Output, 4) => self.outputs::<S, 4>(),
                (Stage::Output, _) => self.outputs::<S, 6>(),
            }
        }
    }
}

impl Transform<'_> {
    #[inline(always)]
    unsafe fn inputs<S: Simd, const SIDE: usize>(&self) {
        let Shape { height, width, .. } = self.step.from;
        let (blocks, count) = (self.step.from.blocks(), self.tiles.len());
        let input = self.context.images(self.step.io.input);
        for (index, tile) in self.tiles.clone().enumerate() {
            let [image, y, x] = self.step.tile(tile);
            // Places before the image wrap around, and are beyond its end.
            let (y, x) = (y.wrapping_sub(self.step.before[0]), x.wrapping_sub(self.step.before[1]));
            for block in 0..blocks {
                let start = image * self.context.stride(self.step.io.input) + block * height * width * LANES;
                // SAFETY: what is loaded lies in the image, and the patches have room for each block and tile.
                unsafe {
                    let image = input.add(start).cast_const();
                    let mut patch = [[S::splat(0.); MOST]; MOST];
                    for (dy, row) in patch.iter_mut().take(SIDE).enumerate() {
                        let y = y.wrapping_add(dy);
                        if y < height {
                            for (dx, value) in row.iter_mut().take(SIDE).enumerate() {
                                let x = x.wrapping_add(dx);
                                if x < width {
                                    *value = S::load(image.add((y * width + x) * LANES));
                                }
                            }
                        }
                        *row = transform::input::<S, SIDE>(*row);
                    }
                    for column in 0..SIDE {
                        let values = transform::input::<S, SIDE>(patch.map(|row| row[column]));
                        for (row, value) in values.into_iter().take(SIDE).enumerate() {
                            let at = ((row * SIDE + column) * blocks + block) * count + index;
                            S::store(self.patches.add(at * LANES), value);
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const SIDE: usize>(&self) {
        let Shape { height, width, .. } = self.step.to;
        let (blocks, count) = (self.step.to.blocks(), self.tiles.len());
        let io = self.step.io;
        let out = self.context.images(io.out);
        let residual = io.residual.map(|residual| self.context.images(residual).cast_const());
        for (index, tile) in self.tiles.clone().enumerate() {
            let [image, y, x] = self.step.tile(tile);
            for block in 0..blocks {
                let start = image * self.context.stride(io.out) + block * height * width * LANES;
                // SAFETY: the sums are there for each block and tile; what is stored lies in the image.
                unsafe {
                    let bias = S::load(self.step.bias[block * LANES..].as_ptr());
                    let mut rows = [[S::splat(0.); MOST]; MOST];
                    for column in 0..SIDE {
                        let mut sums = [S::splat(0.); MOST];
                        for (row, sum) in sums.iter_mut().take(SIDE).enumerate() {
                            let at = ((row * SIDE + column) * blocks + block) * count + index;
                            *sum = S::load(self.sums.add(at * LANES));
                        }
                        for (row, value) in transform::output::<S, SIDE>(sums).into_iter().enumerate() {
                            rows[row][column] = value;
                        }
                    }
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
    }
}
