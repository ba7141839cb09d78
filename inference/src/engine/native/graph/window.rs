//! Where a window goes as it moves over an image.

/// Most of any number of a window: what is larger is no network, and must not overflow what is computed with it.
const MAX: usize = 1 << 12;

/// A window; each pair is `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Window {
    pub(in super::super) kernel: [usize; 2],
    pub(in super::super) stride: [usize; 2],
    pub(in super::super) dilation: [usize; 2],
    /// Zeros above and to the left.
    pub(in super::super) before: [usize; 2],
    /// Zeros below and to the right.
    pub(in super::super) after: [usize; 2],
}

impl Window {
    /// A window of one pixel.
    pub(in super::super) const PIXEL: Self =
        Self { kernel: [1, 1], stride: [1, 1], dilation: [1, 1], before: [0, 0], after: [0, 0] };

    /// Whether every number can be computed with.
    pub(super) fn check(&self) -> Result<(), String> {
        let positive = [self.kernel, self.stride, self.dilation];
        if positive.iter().flatten().any(|&value| value == 0 || value > MAX) {
            return Err(format!("kernel, stride and dilation must be 1 to {MAX}"));
        }
        if [self.before, self.after].iter().flatten().any(|&value| value > MAX) {
            return Err(format!("the padding must be 0 to {MAX}"));
        }
        Ok(())
    }

    /// Pixels from the first to the last of the window, in one direction.
    pub(in super::super) fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilation[axis] + 1
    }

    /// Places of the window in one direction over `size` pixels.
    pub(super) fn places(&self, axis: usize, size: usize) -> Result<usize, String> {
        let padded = size + self.before[axis] + self.after[axis];
        let room = padded.checked_sub(self.reach(axis));
        room.map(|room| room / self.stride[axis] + 1).ok_or_else(|| {
            format!("its window of {} pixels is larger than the {padded} of the image", self.reach(axis))
        })
    }

    /// Sets the padding that gives `ceil(size / stride)` places; an odd one goes before or after.
    pub(super) fn pad_same(&mut self, axis: usize, size: usize, extra_before: bool) {
        let places = size.div_ceil(self.stride[axis]);
        let total = ((places - 1) * self.stride[axis] + self.reach(axis)).saturating_sub(size);
        let (less, more) = (total / 2, total.div_ceil(2));
        (self.before[axis], self.after[axis]) = if extra_before { (more, less) } else { (less, more) };
    }

    /// Whether the image is read beyond its edges.
    pub(in super::super) fn is_padded(&self) -> bool {
        self.before != [0, 0] || self.after != [0, 0]
    }
}
