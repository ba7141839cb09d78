//! Where the inputs of an output pixel lie.

use std::ops::Range;

use super::super::graph::Window;
use super::super::simd::LANES;

/// An image of `size` pixels, with its padding, and the window over it.
pub(in super::super) struct Layout {
    /// Whether channels are planes, as in the network's input, and not blocked.
    pub(in super::super) planar: bool,
    pub(in super::super) size: [usize; 2],
    pub(in super::super) window: Window,
}

impl Layout {
    /// Values of a pixel that lie one after another.
    fn unit(&self) -> usize {
        if self.planar { 1 } else { LANES }
    }

    /// Values of an image.
    pub(super) fn values(&self, channels: usize) -> usize {
        let planes = if self.planar { channels } else { channels.div_ceil(LANES) };
        planes * self.size[0] * self.size[1] * self.unit()
    }

    /// Whether an image is one pixel, under a window of one.
    pub(super) fn is_pixel(&self) -> bool {
        self.size == [1, 1] && self.window.kernel == [1, 1]
    }

    /// Distances of two output pixels and of two output rows.
    pub(super) fn steps(&self) -> [usize; 2] {
        let [down, right] = self.window.stride;
        [right * self.unit(), down * self.size[1] * self.unit()]
    }

    /// Inputs in a run, which lie one after another: a block of channels, or a row of the window.
    pub(super) fn inner(&self) -> usize {
        match (self.planar, self.window.dilation[1]) {
            (false, _) => LANES,
            (true, 1) => self.window.kernel[1],
            (true, _) => 1,
        }
    }

    /// Of some channels, where each run of inputs begins, and its first channel and place in the window.
    pub(super) fn runs(&self, channels: &Range<usize>) -> Vec<(usize, [usize; 3])> {
        let Window { kernel, dilation, .. } = self.window;
        let columns = if self.planar { kernel[1] / self.inner() } else { kernel[1] };
        let planes =
            if self.planar { channels.clone() } else { channels.start / LANES..channels.end.div_ceil(LANES) };
        let mut runs = Vec::with_capacity(planes.len() * kernel[0] * columns);
        for plane in planes {
            for y in 0..kernel[0] {
                for x in 0..columns {
                    let pixel = (plane * self.size[0] + y * dilation[0]) * self.size[1] + x * dilation[1];
                    let channel = if self.planar { plane } else { plane * LANES };
                    runs.push((pixel * self.unit(), [channel, y, x]));
                }
            }
        }
        runs
    }

    /// The channel and place in the window of one input of a run.
    pub(super) fn source(&self, [channel, y, x]: [usize; 3], at: usize) -> [usize; 3] {
        if self.planar { [channel, y, x + at] } else { [channel + at, y, x] }
    }
}
