//! Convolutions of 3x3 with fewer products.

mod tiles;
mod transform;

use self::tiles::{Inputs, Outputs, Tiles};
use super::super::graph::{Conv, Shape, Window};
use super::super::kernel::{Activation, Kernels, Tile};
use super::super::memory::Memory;
use super::super::simd::LANES;
use super::packed::{Set, Weights, ahead, by_block, room};
use super::{Context, Io, Step};

/// Values of transformed patches and sums that are kept at a time: they stay in the cache of a core.
const CACHED: usize = 224 << 10;

/// With at most so many products of channels the larger patch is faster, and the smaller one: the larger makes four times
/// as many weights of them, which have to come from memory.
const LARGE: usize = 128 * 128;
const MEDIUM: usize = 256 * 256;

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
                let of = Tiles { step: self, context, patches, sums, tiles: tiles.clone() };
                context.isa.dispatch(Inputs(&of));
                self.products(context.kernels, patches, sums, tiles.len());
                context.isa.dispatch(Outputs(&of));
            }
        }
    }

    fn scratch(&self) -> usize {
        self.side * self.side * (self.from.blocks() + self.to.blocks()) * LANES * self.tiles
    }
}
