//! Copies images into a frame of zeros, so that a convolution need not look where the image ends.

use super::{Context, Step};

/// Copies planes of `height * width * unit` values into ones of a larger frame.
pub(in super::super) struct Pad {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) planes: usize,
    /// Values of a pixel.
    pub(in super::super) unit: usize,
    pub(in super::super) size: [usize; 2],
    /// Zeros above and to the left.
    pub(in super::super) before: [usize; 2],
    pub(in super::super) framed: [usize; 2],
}

impl Step for Pad {
    unsafe fn run(&self, context: &Context<'_>) {
        let [height, width] = self.size;
        let [framed_height, framed_width] = self.framed;
        let (from, to) = (context.images(self.input), context.images(self.out));
        let row = framed_width * self.unit;
        for at in context.part(context.batch * self.planes * framed_height) {
            let (plane, y) = (at / framed_height, at % framed_height);
            let (image, plane) = (plane / self.planes, plane % self.planes);
            let start = image * context.stride(self.out) + (plane * framed_height + y) * row;
            // SAFETY: the row lies in the framed image, and is this thread's alone.
            let framed = unsafe { std::slice::from_raw_parts_mut(to.add(start), row) };
            let source = y.checked_sub(self.before[0]).filter(|&y| y < height);
            let Some(y) = source else {
                framed.fill(0.);
                continue;
            };
            let start = image * context.stride(self.input) + (plane * height + y) * width * self.unit;
            // SAFETY: the row lies in the image, which nothing writes meanwhile.
            let source = unsafe { std::slice::from_raw_parts(from.add(start), width * self.unit) };
            let (left, rest) = framed.split_at_mut(self.before[1] * self.unit);
            let (middle, right) = rest.split_at_mut(source.len());
            left.fill(0.);
            middle.copy_from_slice(source);
            right.fill(0.);
        }
    }
}
