//! Choosing a part of a picture.

use rand_chacha::ChaCha8Rng;

use super::frame::Frame;
use crate::random::{below, uniform};

/// A window in pixels; `top` and `left` may be negative, and the window may reach over the edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) top: isize,
    pub(super) left: isize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Window {
    /// The whole frame.
    pub(super) fn whole(src: &Frame) -> Self {
        Self { top: 0, left: 0, height: src.height, width: src.width }
    }

    /// The middle, as torchvision's `CenterCrop` places it (halves round to even).
    pub(super) fn center(src: &Frame, height: usize, width: usize) -> Self {
        let offset = |size: usize, len: usize| ((size as f64 - len as f64) / 2.0).round_ties_even() as isize;
        Self { top: offset(src.height, height), left: offset(src.width, width), height, width }
    }

    /// A window anywhere in the padded frame, or `None` when it does not fit.
    pub(super) fn random(
        src: &Frame,
        [height, width]: [usize; 2],
        padding: usize,
        rng: &mut ChaCha8Rng,
    ) -> Option<Self> {
        let room_y = (src.height + 2 * padding).checked_sub(height)?;
        let room_x = (src.width + 2 * padding).checked_sub(width)?;
        let top = below(rng, room_y + 1) as isize - padding as isize;
        let left = below(rng, room_x + 1) as isize - padding as isize;
        Some(Self { top, left, height, width })
    }

    /// A part with an area (as a share of the whole) and proportions drawn at random, as torchvision's
    /// `RandomResizedCrop` draws them: ten tries, then the largest middle part of allowed proportions.
    pub(super) fn random_part(height: usize, width: usize, area: [f32; 2], rng: &mut ChaCha8Rng) -> Self {
        const RATIO: [f32; 2] = [3.0 / 4.0, 4.0 / 3.0];
        let round = |length: f32| length.round_ties_even() as usize;
        for _ in 0..10 {
            let target = (height * width) as f32 * uniform(rng, area[0], area[1]);
            let ratio = uniform(rng, RATIO[0].ln(), RATIO[1].ln()).exp();
            let (h, w) = (round((target / ratio).sqrt()), round((target * ratio).sqrt()));
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let top = below(rng, height - h + 1) as isize;
                let left = below(rng, width - w + 1) as isize;
                return Self { top, left, height: h, width: w };
            }
        }
        let h = height.min(round(width as f32 / RATIO[0])).max(1);
        let w = width.min(round(height as f32 * RATIO[1])).max(1);
        Self { top: ((height - h) / 2) as isize, left: ((width - w) / 2) as isize, height: h, width: w }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Stream, generator};

    #[test]
    fn the_centre_window_rounds_halves_to_even_as_torchvision_does() {
        let frame = |height, width| Frame { height, width, ..Frame::default() };
        // torchvision: int(round((height - crop) / 2.0)) with Python's round: 0.5 -> 0, 1.5 -> 2.
        let window = Window::center(&frame(5, 7), 4, 4);
        assert_eq!((window.top, window.left), (0, 2));
        assert_eq!(Window::center(&frame(2, 2), 4, 4).top, -1);
    }

    #[test]
    fn a_random_part_stays_inside_and_has_the_allowed_area_and_proportions() {
        for seed in 0..500 {
            let w = Window::random_part(40, 60, [0.25, 0.5], &mut generator(Stream::Transform, seed, 0, 0));
            assert!(w.top >= 0 && w.left >= 0);
            assert!(w.top as usize + w.height <= 40 && w.left as usize + w.width <= 60);
            let (area, ratio) = (w.height * w.width, w.width as f32 / w.height as f32);
            // Rounding to whole pixels moves both a little.
            assert!((550..=1250).contains(&area), "{w:?}");
            assert!((0.7..1.43).contains(&ratio), "{w:?}");
        }
        // No part of this strip has the proportions: the middle one with 4:3 is taken.
        let strip = Window { top: 0, left: 48, height: 3, width: 4 };
        assert_eq!(
            Window::random_part(3, 100, [1.0, 1.0], &mut generator(Stream::Transform, 0, 0, 0)),
            strip
        );
    }
}
