//! Resizing by a triangle filter: bilinear when enlarging, antialiased when shrinking.
//!
//! Pixel centres lie at half-integers, as in PIL and in torch's
//! `interpolate(mode="bilinear", align_corners=False, antialias=True)`; both give these values.

use std::ops::Range;

use super::frame::Frame;
use super::window::Window;
use crate::Image;

/// Memory that is kept from image to image.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    columns: Taps,
    rows: Taps,
    /// A row of the input at the width of the output.
    line: Vec<f32>,
}

/// For each output position, the input positions it reads and their weights.
#[derive(Clone, Debug, Default)]
struct Taps {
    spans: Vec<Span>,
    weights: Vec<f32>,
}

/// Of one output position.
#[derive(Clone, Debug)]
struct Span {
    /// First input position.
    first: usize,
    /// Where its weights lie among all.
    weights: Range<usize>,
}

impl Taps {
    /// Weights that bring `len` input values from `start` on to `output` values.
    fn fill(&mut self, start: usize, len: usize, output: usize) {
        self.spans.clear();
        self.weights.clear();
        let scale = len as f64 / output as f64;
        // Shrinking widens the filter, so that each input value counts; enlarging never narrows it.
        let support = scale.max(1.0);
        for i in 0..output {
            let center = (i as f64 + 0.5) * scale;
            let first = ((center - support + 0.5).max(0.0) as usize).min(len - 1);
            let end = ((center + support + 0.5) as usize).clamp(first + 1, len);
            let weight = |x: usize| (1.0 - ((x as f64 + 0.5 - center) / support).abs()).max(0.0);
            let total: f64 = (first..end).map(weight).sum();
            let from = self.weights.len();
            self.weights.extend((first..end).map(|x| (weight(x) / total) as f32));
            self.spans.push(Span { first: start + first, weights: from..self.weights.len() });
        }
    }

    /// Each output position's first input and weights; neither the first inputs nor the last ones ever go back.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        // Not by range: this saves a twentieth of the time that resizing a photograph takes.
        let mut rest = self.weights.as_slice();
        self.spans.iter().map(move |span| {
            let (weights, tail) = rest.split_at(span.weights.len());
            rest = tail;
            (span.first, weights)
        })
    }

    /// As [`iter`](Self::iter), from this output position on.
    fn iter_from(&self, position: usize) -> impl Iterator<Item = (usize, &[f32])> {
        self.spans[position..].iter().map(|span| (span.first, &self.weights[span.weights.clone()]))
    }
}

/// Resizes the part of `src` under `window`, which must lie inside it, to `height` by `width`; what is
/// outside of the window has no influence.
pub(super) fn resize(src: &Frame, window: Window, to: [usize; 2], dst: &mut Frame, buffers: &mut Buffers) {
    let planes = src.planes();
    resize_planes(planes, |value| value, [src.channels, src.width], window, to, dst, buffers);
}

/// As [`Frame::load`] and [`resize`] of the whole, to the same values: a large picture does not become `f32` values,
/// which take four times its memory, before it is small.
pub(super) fn load_resized(image: &Image, to: [usize; 2], dst: &mut Frame, buffers: &mut Buffers) {
    let &Image { ref pixels, channels, height, width, .. } = image;
    let values: [f32; 256] = std::array::from_fn(|value| value as f32 / 255.0);
    let value = |pixel: u8| values[usize::from(pixel)];
    let window = Window { top: 0, left: 0, height, width };
    resize_planes(pixels.chunks_exact(height * width), value, [channels, width], window, to, dst, buffers);
}

/// Resizes planes of `src_width` columns, of whose values `value` makes numbers.
fn resize_planes<'a, T: Copy + 'a>(
    planes: impl Iterator<Item = &'a [T]>,
    value: impl Fn(T) -> f32,
    [channels, src_width]: [usize; 2],
    window: Window,
    [height, width]: [usize; 2],
    dst: &mut Frame,
    buffers: &mut Buffers,
) {
    let Buffers { columns, rows, line } = buffers;
    columns.fill(window.left as usize, window.width, width);
    rows.fill(window.top as usize, window.height, height);
    line.clear();
    line.resize(width, 0.0);
    dst.reset(channels, height, width);
    // A row is resized and at once added to those that it has a part in: a whole picture that is resized in one direction
    // alone would be huge where a strip of one pixel by millions is given.
    for (plane, out) in planes.zip(dst.planes_mut()) {
        // Output rows before this one have all of their input.
        let mut done = 0;
        let inputs = plane.chunks_exact(src_width).enumerate().skip(window.top as usize);
        for (row, source) in inputs.take(window.height) {
            resize_row(source, &value, columns, line);
            let ended = |span: &&Span| span.first + span.weights.len() <= row;
            done += rows.spans[done..].iter().take_while(ended).count();
            let targets = out[done * width..].chunks_exact_mut(width).zip(rows.iter_from(done));
            for (target, (first, weights)) in targets.take_while(|(_, (first, _))| *first <= row) {
                let weight = weights[row - first];
                target.iter_mut().zip(&*line).for_each(|(y, x)| *y += x * weight);
            }
        }
    }
}

fn resize_row<T: Copy>(source: &[T], value: impl Fn(T) -> f32, columns: &Taps, line: &mut [f32]) {
    for (target, (first, weights)) in line.iter_mut().zip(columns.iter()) {
        let values = &source[first..first + weights.len()];
        *target = values.iter().zip(weights).map(|(&x, w)| value(x) * w).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(src: &Frame, window: Window, to: [usize; 2]) -> Vec<f32> {
        let mut dst = Frame::default();
        resize(src, window, to, &mut dst, &mut Buffers::default());
        assert_eq!(dst.shape(), [src.channels, to[0], to[1]]);
        dst.data
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() <= 1e-5, "{found:?} is not {expected:?}");
        }
    }

    /// 0, 1, ..., 10, 0, 1, ... in 5 rows of 7.
    fn sawtooth() -> Frame {
        Frame { data: (0..35).map(|v| (v % 11) as f32).collect(), channels: 1, height: 5, width: 7 }
    }

    // The expected values are those of torch 2.15,
    // F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True).

    #[test]
    fn enlarging_equals_torchs_bilinear() {
        let data = vec![0., 1., 4., 9., 2., 0., 1., 5., 7., 3., 8., 6.];
        let src = Frame { data, channels: 1, height: 3, width: 4 };
        #[rustfmt::skip]
        let expected = [
            0.0, 0.5, 1.5, 3.5, 6.5, 9.0,
            0.8, 0.7, 0.966667, 2.433333, 5.1, 7.4,
            2.0, 1.0, 0.166667, 0.833333, 3.0, 5.0,
            5.0, 3.4, 2.366667, 4.633333, 5.4, 5.6,
            7.0, 5.0, 3.833333, 7.166667, 7.0, 6.0,
        ];
        assert_close(&resized(&src, Window::whole(&src), [5, 6]), &expected);
    }

    #[test]
    fn shrinking_equals_torchs_antialiased_bilinear() {
        let src = sawtooth();
        let expected = [4.535714, 5.176471, 4.142858, 4.964285, 5.147059, 4.392858];
        assert_close(&resized(&src, Window::whole(&src), [2, 3]), &expected);
    }

    #[test]
    fn enlarging_one_side_and_shrinking_the_other_equals_torch() {
        let src = sawtooth();
        #[rustfmt::skip]
        let expected = [
            0.857143, 3.0, 5.142857, 3.919643, 4.647059, 3.392857, 7.607142, 6.716912, 1.580358,
            5.107142, 6.238971, 5.955358, 3.834821, 4.75, 6.892858, 3.790179, 2.25, 4.392857,
            5.513392, 5.57353, 3.21875, 6.857142, 8.352941, 2.5,
        ];
        assert_close(&resized(&src, Window::whole(&src), [8, 3]), &expected);
    }

    #[test]
    fn a_picture_is_resized_to_the_same_values_as_its_frame() {
        let pixels: Vec<u8> = (0..3 * 23 * 31).map(|v: u32| (v * v % 251) as u8).collect();
        let image = Image { pixels, channels: 3, height: 23, width: 31, label: 0 };
        let mut frame = Frame::default();
        frame.load(&image).unwrap();
        for to in [[7, 9], [40, 12], [23, 31]] {
            let mut direct = Frame::default();
            load_resized(&image, to, &mut direct, &mut Buffers::default());
            assert_eq!(direct.shape(), [3, to[0], to[1]]);
            assert_eq!(direct.data, resized(&frame, Window::whole(&frame), to));
        }
    }

    #[test]
    fn a_strip_of_a_million_pixels_takes_no_more_memory_than_its_own() {
        const LONG: usize = 1_000_000;
        for [height, width] in [[LONG, 1], [1, LONG]] {
            let data = (0..LONG).map(|v| v as f32 / LONG as f32).collect();
            let src = Frame { data, channels: 1, height, width };
            let (mut dst, mut buffers) = (Frame::default(), Buffers::default());
            resize(&src, Window::whole(&src), [4, 4], &mut dst, &mut buffers);
            // A symmetric filter keeps a straight line: the values at 3/8 and 5/8 of the length; all are alike across it.
            for along in [1, 2] {
                for across in 0..4 {
                    let at = if height == LONG { along * 4 + across } else { across * 4 + along };
                    let expected = (along as f32 + 0.5) / 4.0 - 0.5 / LONG as f32;
                    assert!((dst.data[at] - expected).abs() < 1e-4, "{} is not {expected}", dst.data[at]);
                }
            }
            assert_eq!((dst.data.len(), buffers.line.len()), (16, 4));
            // Two weights for each pixel, of which every one counts for two of the four.
            assert!(buffers.rows.weights.len() + buffers.columns.weights.len() < 2 * LONG + 100);
        }
    }

    #[test]
    fn a_window_is_resized_as_if_it_had_been_cut_out_before() {
        // Torch: the same on x[..., 1:4, 2:7].
        let window = Window { top: 1, left: 2, height: 3, width: 5 };
        assert_close(&resized(&sawtooth(), window, [2, 2]), &[6.625, 3.9375, 3.5, 5.5]);
    }

    #[test]
    fn a_flat_picture_stays_flat_at_any_size_and_channels_stay_apart() {
        let mut data = vec![0.25; 6];
        data.extend([0.75; 6]);
        let src = Frame { data, channels: 2, height: 2, width: 3 };
        for to in [[1, 1], [2, 3], [7, 2], [1, 9], [32, 32]] {
            let out = resized(&src, Window::whole(&src), to);
            let (a, b) = out.split_at(out.len() / 2);
            assert_close(a, &vec![0.25; a.len()]);
            assert_close(b, &vec![0.75; b.len()]);
        }
    }
}
