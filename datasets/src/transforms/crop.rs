//! Taking a window of a picture, and mirroring it.

use super::frame::Frame;
use super::window::Window;

/// Copies the window; what lies outside of the source is black.
pub(super) fn crop(src: &Frame, window: Window, dst: &mut Frame) {
    dst.reset(src.channels, window.height, window.width);
    let (rows, from_row, to_row) = overlap(window.top, window.height, src.height);
    let (columns, from, to) = overlap(window.left, window.width, src.width);
    for channel in 0..src.channels {
        for row in 0..rows {
            let source = (channel * src.height + from_row + row) * src.width + from;
            let target = (channel * window.height + to_row + row) * window.width + to;
            dst.data[target..target + columns].copy_from_slice(&src.data[source..source + columns]);
        }
    }
}

/// How much of `start..start + len` lies in `0..size`, and where that part begins in the source and
/// in the window.
fn overlap(start: isize, len: usize, size: usize) -> (usize, usize, usize) {
    let from = start.clamp(0, size as isize);
    let to = (start + len as isize).clamp(from, size as isize);
    ((to - from) as usize, from as usize, (from - start) as usize)
}

/// Mirrors left and right.
pub(super) fn flip_horizontal(frame: &mut Frame) {
    let width = frame.width;
    frame.data.chunks_exact_mut(width).for_each(<[f32]>::reverse);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(channels: usize, height: usize, width: usize) -> Frame {
        let data = (1..=channels * height * width).map(|v| v as f32).collect();
        Frame { data, channels, height, width }
    }

    #[test]
    fn a_window_over_the_corner_is_black_outside() {
        let mut dst = Frame::default();
        crop(&ramp(2, 2, 2), Window { top: -1, left: 1, height: 2, width: 2 }, &mut dst);
        assert_eq!(dst.data, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 6.0, 0.0]);
        crop(&ramp(1, 2, 2), Window { top: 5, left: -7, height: 1, width: 2 }, &mut dst);
        assert_eq!(dst.data, [0.0, 0.0]);
    }

    #[test]
    fn flipping_reverses_each_row_only() {
        let mut frame = ramp(1, 2, 3);
        flip_horizontal(&mut frame);
        assert_eq!(frame.data, [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
    }
}
