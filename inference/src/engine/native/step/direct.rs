//! Convolutions as sums over shifted images.

use std::ops::Range;

use super::super::graph::{Conv, Shape};
use super::super::kernel::{Activation, Kernels, Tile};
use super::super::memory::Memory;
use super::super::simd::LANES;
use super::layout::Layout;
use super::packed::{Set, Weights, ahead, by_block, room};
use super::{Context, Io, Step};

/// Values of the input that stay in the cache of a core (half of 1 MiB) while all output channels are computed of them.
const CACHED: usize = 96 << 10;

/// A convolution of an image that needs no padding, or has it.
pub(in super::super) struct Direct {
    io: Io,
    /// Of the output.
    shape: Shape,
    /// Whether images of one pixel are computed as the pixels of one.
    images_as_pixels: bool,
    /// Distance of two output pixels, and rows, in the input.
    steps: [usize; 2],
    sets: Vec<Set>,
    weights: Memory,
    /// Of each run of inputs, by set; and the inputs in a run.
    offsets: Vec<usize>,
    inner: usize,
    /// Where the offsets of a set begin, and how many they are.
    runs: Vec<Range<usize>>,
    bias: Vec<f32>,
    activation: Option<Activation>,
}

impl Direct {
    /// Packs a convolution of images that lie so, with their padding.
    pub(in super::super) fn new(
        conv: &Conv<'_>,
        io: Io,
        layout: &Layout,
        shape: Shape,
        kernels: &Kernels,
    ) -> Result<Self, String> {
        let mut direct = Self {
            io,
            shape,
            images_as_pixels: shape.pixels() == 1 && layout.is_pixel() && !layout.planar,
            steps: layout.steps(),
            sets: Set::split(conv, kernels.blocks),
            weights: Memory::none(),
            offsets: Vec::new(),
            inner: layout.inner(),
            runs: Vec::new(),
            bias: by_block(&conv.bias),
            activation: conv.activation,
        };
        direct.plan(layout)?;
        direct.check(layout, conv.in_channels)?;
        direct.pack(layout, &Weights::of(conv));
        Ok(direct)
    }

    /// Says where each set's inputs and weights lie, and makes room for the weights.
    fn plan(&mut self, layout: &Layout) -> Result<(), String> {
        let mut total = Some(0_usize);
        let mut last = 0..0;
        for (at, set) in self.sets.iter_mut().enumerate() {
            // Sets of the same channels, which are all but those of groups, share their offsets.
            if at == 0 || last != set.channels {
                let start = self.offsets.len();
                self.offsets.extend(layout.runs(&set.channels).into_iter().map(|(offset, _)| offset));
                self.runs.push(start..self.offsets.len());
                last = set.channels.clone();
            } else {
                self.runs.push(self.runs[at - 1].clone());
            }
            set.weights = total.unwrap_or(0);
            let values = self.runs[at].len().checked_mul(self.inner * set.blocks * LANES);
            total = total.zip(values).and_then(|(total, values)| total.checked_add(values));
        }
        self.weights = room(total)?;
        Ok(())
    }

    fn pack(&mut self, layout: &Layout, weights: &Weights) {
        for set in &self.sets {
            let mut to = self.weights.as_mut()[set.weights..].iter_mut();
            let outs = set.block * LANES..(set.block + set.blocks) * LANES;
            for (_, source) in layout.runs(&set.channels) {
                for [channel, y, x] in (0..self.inner).map(|at| layout.source(source, at)) {
                    // In this order: a pair that lacks the second would have taken the first.
                    for (out, to) in outs.clone().zip(to.by_ref()) {
                        *to = weights.at(out, channel, y, x) as f32;
                    }
                }
            }
        }
    }

    /// Whether the kernel stays within the input's image.
    fn check(&self, layout: &Layout, channels: usize) -> Result<(), String> {
        let last = (self.shape.height - 1) * self.steps[1] + (self.shape.width - 1) * self.steps[0];
        let reach = self.offsets.iter().max().map_or(0, |offset| offset + last + self.inner);
        if reach <= layout.values(channels) { Ok(()) } else { Err("its window leaves the image".to_owned()) }
    }

    /// Images, rows and columns that are computed, and the distances of two columns in the input and output.
    fn extent(&self, context: &Context<'_>) -> ([usize; 3], [usize; 2]) {
        let Shape { height, width, .. } = self.shape;
        if self.images_as_pixels {
            return ([1, 1, context.batch], [context.stride(self.io.input), context.stride(self.io.out)]);
        }
        ([context.batch, height, width], [self.steps[0], LANES])
    }

    /// Which tiles and sets a thread computes: a part of the tiles, or of the sets where weights are more than the cache
    /// holds, so that each is read by one thread alone.
    fn parts(&self, context: &Context<'_>, tiles: usize) -> (Range<usize>, Range<usize>) {
        let sets = self.sets.len();
        let few = tiles < 4 * context.threads;
        if (self.weights.len() > 3 * CACHED || few) && sets >= 2 * context.threads {
            return (0..tiles, context.part(sets));
        }
        (context.part(tiles), 0..sets)
    }
}

impl Direct {
    /// Computes a tile of a set; `place` counts the tiles of the set that were computed before.
    ///
    /// # Safety
    ///
    /// As [`Step::run`].
    unsafe fn tile(&self, context: &Context<'_>, at: usize, tile: usize, place: usize) {
        let ([_, rows, columns], [step, out_step]) = self.extent(context);
        let per_row = columns.div_ceil(context.kernels.pixels);
        let (set, runs) = (&self.sets[at], &self.offsets[self.runs[at].clone()]);
        let (row, part) = (tile / per_row, tile % per_row);
        let (image, row) = (row / rows, row % rows);
        let (first, end) = (part * columns / per_row, (part + 1) * columns / per_row);
        let x = image * context.stride(self.io.input) + row * self.steps[1] + first * step;
        let pixel = row * self.shape.width * LANES + first * out_step;
        let out_block = self.shape.pixels() * LANES;
        let to = image * context.stride(self.io.out) + set.block * out_block + pixel;
        let weights = self.weights.pointer().wrapping_add(set.weights);
        let residual =
            self.io.residual.map(|residual| context.images(residual).wrapping_add(to).cast_const());
        let size = runs.len() * self.inner * set.blocks * LANES;
        // SAFETY: `check` has made sure that the window stays in the image, `plan` that each set has its weights and offsets;
        // the tile's pixels lie in the output, and are this thread's alone.
        unsafe {
            context.kernels.by_pixels(set.blocks, step, self.inner)[end - first - 1](&Tile {
                x: context.images(self.io.input).add(x),
                step,
                offsets: runs.as_ptr(),
                runs: runs.len(),
                inner: self.inner,
                weights,
                ahead: ahead(weights, size, place, set.blocks),
                bias: self.bias[set.block * LANES..].as_ptr(),
                out: context.images(self.io.out).add(to),
                residual: residual.unwrap_or(std::ptr::null()),
                out_step,
                out_block,
                activation: self.activation,
            });
        }
    }
}

impl Step for Direct {
    unsafe fn run(&self, context: &Context<'_>) {
        let ([images, rows, columns], _) = self.extent(context);
        let per_row = columns.div_ceil(context.kernels.pixels);
        let (tiles, sets) = self.parts(context, images * rows * per_row);
        let tile_values = columns.div_ceil(per_row) * self.runs[0].len() * self.inner;
        let chunk = (CACHED / tile_values.max(1)).max(1);
        for start in tiles.clone().step_by(chunk) {
            for set in sets.clone() {
                for tile in start..tiles.end.min(start + chunk) {
                    // SAFETY: the caller keeps the promises of the trait.
                    unsafe { self.tile(context, set, tile, tile - start) }
                }
            }
        }
    }
}
