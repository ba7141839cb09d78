//! Between blocked channels and others.

use super::super::graph::Shape;
use super::super::simd::LANES;
use super::{Context, Step};

/// Blocks the channels of the network's input, `[channels, height, width]` to `[blocks, height, width, LANES]`.
pub(in super::super) struct Block {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) shape: Shape,
}

impl Step for Block {
    unsafe fn run(&self, context: &Context<'_>) {
        let (blocks, pixels) = (self.shape.blocks(), self.shape.pixels());
        for at in context.part(context.batch * blocks) {
            let (image, block) = (at / blocks, at % blocks);
            let start = image * context.stride(self.out) + block * pixels * LANES;
            // SAFETY: the block lies in the image, and is this thread's alone.
            let out = unsafe {
                std::slice::from_raw_parts_mut(context.images(self.out).add(start), pixels * LANES)
            };
            out.fill(0.);
            for lane in 0..LANES.min(self.shape.channels - block * LANES) {
                let start = image * context.stride(self.input) + (block * LANES + lane) * pixels;
                // SAFETY: the channel lies in the image, which nothing writes meanwhile.
                let plane =
                    unsafe { std::slice::from_raw_parts(context.images(self.input).add(start), pixels) };
                for (out, value) in out.iter_mut().skip(lane).step_by(LANES).zip(plane) {
                    *out = *value;
                }
            }
        }
    }
}

/// Makes pixels channels, in the order `[channels, height, width]`.
pub(in super::super) struct Flatten {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    /// Of the input.
    pub(in super::super) shape: Shape,
}

impl Step for Flatten {
    unsafe fn run(&self, context: &Context<'_>) {
        let pixels = self.shape.pixels();
        for image in context.part(context.batch) {
            let (from, to) = (context.stride(self.input), context.stride(self.out));
            // SAFETY: both images lie in the memory, and the second is this thread's alone.
            let (source, out) = unsafe {
                (
                    std::slice::from_raw_parts(context.images(self.input).add(image * from), from),
                    std::slice::from_raw_parts_mut(context.images(self.out).add(image * to), to),
                )
            };
            let (values, rest) = out.split_at_mut(self.shape.channels * pixels);
            rest.fill(0.);
            for (channel, plane) in values.chunks_mut(pixels).enumerate() {
                let start = channel / LANES * pixels * LANES + channel % LANES;
                for (out, value) in plane.iter_mut().zip(source[start..].iter().step_by(LANES)) {
                    *out = *value;
                }
            }
        }
    }
}
