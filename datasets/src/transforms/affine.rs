//! Rotation, scale and shift in one warp, so that the picture is interpolated once.

use rand_chacha::ChaCha8Rng;

use super::frame::Frame;
use crate::random::uniform;

/// A movement of the picture about its centre: first scaled, then turned, then shifted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    /// Clockwise as seen on the screen, in degrees.
    pub(super) degrees: f32,
    /// Factor of the size; above 1 the content grows.
    pub(super) scale: f32,
    /// Shift to the right, in pixels.
    pub(super) right: f32,
    /// Shift downwards, in pixels.
    pub(super) down: f32,
}

impl Affine {
    /// One drawn at random, up to these limits; the shift is a part of the frame's sides.
    pub(super) fn random(
        src: &Frame,
        max_degrees: f32,
        max_translate: f32,
        [min_scale, max_scale]: [f32; 2],
        rng: &mut ChaCha8Rng,
    ) -> Self {
        // Struct fields are evaluated in the order in which they stand here, and every draw moves the generator on.
        Self {
            degrees: uniform(rng, -max_degrees, max_degrees),
            right: uniform(rng, -max_translate, max_translate) * src.width as f32,
            down: uniform(rng, -max_translate, max_translate) * src.height as f32,
            scale: uniform(rng, min_scale, max_scale),
        }
    }
}

/// Moves the content of `src` within a frame of the same size, bilinearly; what comes in from outside
/// is black.
pub(super) fn warp(src: &Frame, affine: Affine, dst: &mut Frame) {
    dst.reset(src.channels, src.height, src.width);
    let (sin, cos) = affine.degrees.to_radians().sin_cos();
    let (sin, cos) = (sin / affine.scale, cos / affine.scale);
    let [center_x, center_y] = [src.width, src.height].map(|size| (size as f32 - 1.0) / 2.0);

    for y in 0..src.height {
        for x in 0..src.width {
            // The inverse movement says where the value of an output pixel comes from.
            let dx = x as f32 - center_x - affine.right;
            let dy = y as f32 - center_y - affine.down;
            let from_x = cos * dx + sin * dy + center_x;
            let from_y = cos * dy - sin * dx + center_y;
            let out = y * src.width + x;
            sample(src, from_x, from_y, |channel, value| {
                dst.data[channel * src.height * src.width + out] = value;
            });
        }
    }
}

/// Gives each channel's bilinear value at a point between pixel centres.
fn sample(src: &Frame, x: f32, y: f32, mut put: impl FnMut(usize, f32)) {
    let (left, top) = (x.floor(), y.floor());
    let (right_part, low_part) = (x - left, y - top);
    let corners = [
        (0.0, 0.0, (1.0 - right_part) * (1.0 - low_part)),
        (1.0, 0.0, right_part * (1.0 - low_part)),
        (0.0, 1.0, (1.0 - right_part) * low_part),
        (1.0, 1.0, right_part * low_part),
    ]
    .map(|(dx, dy, weight)| {
        let (x, y) = (left + dx, top + dy);
        let inside = x >= 0.0 && y >= 0.0 && x < src.width as f32 && y < src.height as f32;
        if inside { (y as usize * src.width + x as usize, weight) } else { (0, 0.0) }
    });
    for (channel, plane) in src.planes().enumerate() {
        put(channel, corners.iter().map(|&(at, weight)| plane[at] * weight).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warped(src: &Frame, degrees: f32, scale: f32, right: f32, down: f32) -> Vec<f32> {
        let mut dst = Frame::default();
        warp(src, Affine { degrees, scale, right, down }, &mut dst);
        dst.data
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() <= 1e-5, "{found:?} is not {expected:?}");
        }
    }

    fn picture() -> Frame {
        let data = vec![0., 1., 4., 9., 2., 0., 1., 5., 7., 3., 8., 6.];
        Frame { data, channels: 1, height: 3, width: 4 }
    }

    #[test]
    fn turning_scaling_and_shifting_at_once_equals_torchs_grid_sample() {
        // torch 2.15, F.grid_sample(mode="bilinear", padding_mode="zeros", align_corners=False) in f64
        // with the inverse of [[s cos, -s sin], [s sin, s cos]] about the centre.
        #[rustfmt::skip]
        let expected = [
            5.087255, 1.398846, 0.711769, 3.144102,
            3.634998, 3.260282, 4.021615, 3.454895,
            0.0, 2.145517, 5.98549, 5.906176,
        ];
        assert_close(&warped(&picture(), 30.0, 1.25, 0.5, -0.75), &expected);
    }

    #[test]
    fn a_quarter_turn_moves_the_left_column_to_the_top() {
        let src = Frame { data: vec![0., 1., 4., 2., 0., 1., 7., 3., 8.], channels: 1, height: 3, width: 3 };
        assert_close(&warped(&src, 90.0, 1.0, 0.0, 0.0), &[7., 2., 0., 3., 0., 1., 8., 1., 4.]);
    }

    #[test]
    fn no_movement_changes_nothing_and_a_shift_brings_in_black() {
        assert_close(&warped(&picture(), 0.0, 1.0, 0.0, 0.0), &picture().data);
        let right = warped(&picture(), 0.0, 1.0, 1.0, 0.0);
        assert_close(&right, &[0., 0., 1., 4., 0., 2., 0., 1., 0., 7., 3., 8.]);
        assert_close(&warped(&picture(), 0.0, 1.0, 0.0, 50.0), &[0.0; 12]);
    }
}
