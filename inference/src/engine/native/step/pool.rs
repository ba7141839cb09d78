//! The largest or mean value of some pixels.

use std::ops::Range;

use super::super::graph::{Pool, PoolKind, Shape};
use super::super::simd::{Job, LANES, Simd};
use super::{Context, Step};

/// The largest or mean value under a window.
pub(in super::super) struct PoolStep {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) pool: Pool,
    pub(in super::super) from: Shape,
    pub(in super::super) to: Shape,
}

/// The mean of each channel.
pub(in super::super) struct GlobalAverage {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) shape: Shape,
}

/// The largest value of a window that lies on no pixel, which one with gaps can: as in ONNX Runtime.
const LOWEST: f32 = f32::MIN;

/// One row of one block of channels.
struct Row<'a> {
    step: &'a PoolStep,
    /// The block of the input.
    x: *const f32,
    /// The row of the output.
    out: *mut f32,
    y: usize,
}

impl PoolStep {
    /// The places of the window, in one direction, that lie on the image.
    #[inline(always)]
    fn on_image(&self, axis: usize, at: usize, size: usize) -> Range<usize> {
        let window = &self.pool.window;
        let (start, dilation) = (at * window.stride[axis], window.dilation[axis]);
        let first = window.before[axis].saturating_sub(start).div_ceil(dilation);
        let beyond = (size + window.before[axis]).saturating_sub(start).div_ceil(dilation);
        first..window.kernel[axis].min(beyond).max(first)
    }

    /// What a sum of so many values is divided by.
    #[inline(always)]
    fn divisor(&self, on_image: usize) -> f32 {
        match self.pool.kind {
            PoolKind::Average { padding: true } => self.pool.window.kernel.iter().product::<usize>() as f32,
            _ => on_image as f32,
        }
    }
}

impl Job for Row<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { step, x, out, y } = self;
        let window = &step.pool.window;
        let max = step.pool.kind == PoolKind::Max;
        let rows = step.on_image(0, y, step.from.height);
        for column in 0..step.to.width {
            let columns = step.on_image(1, column, step.from.width);
            // SAFETY: the windows' places lie on the image; who makes the job gives the row of the output.
            unsafe {
                let mut value = S::splat(if max { LOWEST } else { 0. });
                for row in rows.clone() {
                    let from = y * window.stride[0] + row * window.dilation[0] - window.before[0];
                    for at in columns.clone() {
                        let at = column * window.stride[1] + at * window.dilation[1] - window.before[1];
                        let x = S::load(x.add((from * step.from.width + at) * LANES));
                        value = if max { S::max(value, x) } else { S::add(value, x) };
                    }
                }
                if !max {
                    value = S::mul(value, S::splat(1. / step.divisor(rows.len() * columns.len())));
                }
                S::store(out.add(column * LANES), value);
            }
        }
    }
}

impl Step for PoolStep {
    unsafe fn run(&self, context: &Context<'_>) {
        let (blocks, rows) = (self.from.blocks(), self.to.height);
        for at in context.part(context.batch * blocks * rows) {
            let (block, y) = (at / rows, at % rows);
            let (image, block) = (block / blocks, block % blocks);
            let from = image * context.stride(self.input) + block * self.from.pixels() * LANES;
            let to =
                image * context.stride(self.out) + (block * self.to.pixels() + y * self.to.width) * LANES;
            // SAFETY: the block and the row lie in the images, and the row is this thread's alone.
            unsafe {
                let (x, out) = (context.images(self.input).add(from), context.images(self.out).add(to));
                context.isa.dispatch(Row { step: self, x, out, y });
            }
        }
    }
}

/// The mean of vectors one after another.
struct Mean {
    x: *const f32,
    out: *mut f32,
    vectors: usize,
}

impl Job for Mean {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: who makes the job gives as many vectors, and room for one.
        unsafe {
            let mut sum = S::splat(0.);
            for vector in 0..self.vectors {
                sum = S::add(sum, S::load(self.x.add(vector * LANES)));
            }
            S::store(self.out, S::mul(sum, S::splat(1. / self.vectors as f32)));
        }
    }
}

impl Step for GlobalAverage {
    unsafe fn run(&self, context: &Context<'_>) {
        let (blocks, vectors) = (self.shape.blocks(), self.shape.pixels());
        for at in context.part(context.batch * blocks) {
            let (image, block) = (at / blocks, at % blocks);
            let from = image * context.stride(self.input) + block * vectors * LANES;
            let to = image * context.stride(self.out) + block * LANES;
            // SAFETY: the block lies in both images, and the mean is this thread's alone.
            unsafe {
                let (x, out) = (context.images(self.input).add(from), context.images(self.out).add(to));
                context.isa.dispatch(Mean { x, out, vectors });
            }
        }
    }
}
