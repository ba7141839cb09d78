//! Resizing by a triangle filter: bilinear when enlarging, antialiased when shrinking.
//!
//! Pixel centres lie at half-integers, as in PIL and in torch's
//! `interpolate(mode="bilinear", align_corners=False, antialias=True)`; both give these values.

use super::crop::Window;
use super::frame::Frame;

/// Memory that is kept from image to image.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    columns: Taps,
    rows: Taps,
    half: Frame,
}

/// For each output position, the input positions it reads and their weights.
#[derive(Clone, Debug, Default)]
struct Taps {
    /// First input position and number of weights.
    spans: Vec<(usize, usize)>,
    weights: Vec<f32>,
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
            self.weights.extend((first..end).map(|x| (weight(x) / total) as f32));
            self.spans.push((start + first, end - first));
        }
    }

    /// Each output position's first input and weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let mut rest = self.weights.as_slice();
        self.spans.iter().map(move |&(first, count)| {
            let (weights, tail) = rest.split_at(count);
            rest = tail;
            (first, weights)
        })
    }
}

/// Resizes the part of `src` under `window`, which must lie inside it, to `height` by `width`; what is
/// outside of the window has no influence.
pub(super) fn resize(
    src: &Frame,
    window: Window,
    [height, width]: [usize; 2],
    dst: &mut Frame,
    buffers: &mut Buffers,
) {
    let Buffers { columns, rows, half } = buffers;
    columns.fill(window.left as usize, window.width, width);
    rows.fill(window.top as usize, window.height, height);

    // Columns first: the rows outside of the window are not needed.
    half.reset(src.channels, window.height, width);
    let top = window.top as usize;
    for (plane, out) in src.planes().zip(half.planes_mut()) {
        let source_rows = plane[top * src.width..].chunks_exact(src.width);
        for (source, target) in source_rows.zip(out.chunks_exact_mut(width)) {
            for (value, (first, weights)) in target.iter_mut().zip(columns.iter()) {
                let values = &source[first..first + weights.len()];
                *value = values.iter().zip(weights).map(|(x, w)| x * w).sum();
            }
        }
    }

    dst.reset(src.channels, height, width);
    for (plane, out) in half.planes().zip(dst.planes_mut()) {
        for (target, (first, weights)) in out.chunks_exact_mut(width).zip(rows.iter()) {
            let source_rows = plane[(first - top) * width..].chunks_exact(width);
            for (source, weight) in source_rows.zip(weights) {
                target.iter_mut().zip(source).for_each(|(y, x)| *y += x * weight);
            }
        }
    }
}
