//! Rotation, scale and shift in one warp, so that the picture is interpolated once.

use super::frame::Frame;

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
