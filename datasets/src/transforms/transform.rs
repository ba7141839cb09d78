//! The transforms and their settings.

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::affine::{Affine, warp};
use super::crop::{Window, center, crop, flip_horizontal};
use super::frame::Frame;
use super::normalize::Normalization;
use super::resample::{Buffers, resize};
use crate::DataError;
use crate::random::{below, uniform};

/// One step from a decoded image to the network's input.
///
/// The geometric ones follow torchvision's transforms of the same name, on `f32` values without
/// rounding in between. Sizes are in pixels. In JSON: `{"resize": {"height": 32, "width": 32}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Transform {
    /// Resizes to exactly this size, bilinear and antialiased.
    Resize {
        /// New height.
        height: usize,
        /// New width.
        width: usize,
    },
    /// Resizes so that the shorter side has `size` pixels; the proportions stay.
    ResizeShorter {
        /// New length of the shorter side.
        size: usize,
    },
    /// Takes the middle; a smaller image gets a black border.
    CenterCrop {
        /// Height of the window.
        height: usize,
        /// Width of the window.
        width: usize,
    },
    /// Takes a random window of the image with `padding` black pixels on each side.
    RandomCrop {
        /// Height of the window, at most the image's plus both paddings.
        height: usize,
        /// Width of the window, at most the image's plus both paddings.
        width: usize,
        /// Black pixels added on each side.
        padding: usize,
    },
    /// Takes a random part with `min_area` to `max_area` of the image's area and proportions of 3:4 to
    /// 4:3, and resizes it: the usual augmentation for ImageNet (0.08 to 1).
    RandomResizedCrop {
        /// New height.
        height: usize,
        /// New width.
        width: usize,
        /// Least part of the area, above 0.
        min_area: f32,
        /// Largest part of the area, at most 1.
        max_area: f32,
    },
    /// Mirrors left and right with this probability.
    RandomHorizontalFlip {
        /// From 0 (never) to 1 (always).
        probability: f32,
    },
    /// Turns, scales and shifts the content about the centre, in one interpolation.
    RandomAffine {
        /// Largest turn either way, in degrees.
        max_degrees: f32,
        /// Largest shift either way, as a part of the height and the width.
        max_translate: f32,
        /// Least scale, above 0.
        min_scale: f32,
        /// Largest scale.
        max_scale: f32,
    },
    /// Makes three equal channels of a grey image; leaves RGB as it is.
    ToRgb,
    /// Subtracts the mean and divides by the standard deviation, per channel.
    Normalize(Normalization),
}

impl Transform {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidTransform`] names the setting and the allowed range.
    pub fn validate(&self) -> Result<(), DataError> {
        use Transform::*;
        let name = self.name();
        let check = |ok: bool, setting, value: String, expected| match ok {
            true => Ok(()),
            false => Err(DataError::InvalidTransform { transform: name, name: setting, value, expected }),
        };
        match *self {
            ResizeShorter { size } => check(size > 0, "size", size.to_string(), "at least 1"),
            Resize { height, width } | CenterCrop { height, width } | RandomCrop { height, width, .. } => {
                check_size(&check, height, width)
            }
            RandomResizedCrop { height, width, min_area, max_area } => {
                check_size(&check, height, width)?;
                let ok = 0.0 < min_area && min_area <= max_area && max_area <= 1.0;
                check(ok, "area", format!("{min_area} to {max_area}"), "0 < min_area <= max_area <= 1")
            }
            RandomHorizontalFlip { probability } => {
                let ok = (0.0..=1.0).contains(&probability);
                check(ok, "probability", probability.to_string(), "0 to 1")
            }
            RandomAffine { max_degrees, max_translate, min_scale, max_scale } => {
                check(
                    (0.0..=360.0).contains(&max_degrees),
                    "max_degrees",
                    max_degrees.to_string(),
                    "0 to 360",
                )?;
                let ok = (0.0..=1.0).contains(&max_translate);
                check(ok, "max_translate", max_translate.to_string(), "0 to 1")?;
                let ok = 0.0 < min_scale && min_scale <= max_scale && max_scale.is_finite();
                check(ok, "scale", format!("{min_scale} to {max_scale}"), "0 < min_scale <= max_scale")
            }
            ToRgb => Ok(()),
            Normalize(ref normalization) => normalization.validate(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Resize { .. } => "resize",
            Self::ResizeShorter { .. } => "resize_shorter",
            Self::CenterCrop { .. } => "center_crop",
            Self::RandomCrop { .. } => "random_crop",
            Self::RandomResizedCrop { .. } => "random_resized_crop",
            Self::RandomHorizontalFlip { .. } => "random_horizontal_flip",
            Self::RandomAffine { .. } => "random_affine",
            Self::ToRgb => "to_rgb",
            Self::Normalize(_) => "normalize",
        }
    }

    /// Transforms `frame`; `spare` lends its memory and holds nothing of use afterwards.
    pub(super) fn apply(
        &self,
        frame: &mut Frame,
        spare: &mut Frame,
        buffers: &mut Buffers,
        rng: &mut ChaCha8Rng,
    ) -> Result<(), DataError> {
        match *self {
            Self::Resize { height, width } => resize_all(frame, [height, width], spare, buffers),
            Self::ResizeShorter { size } => {
                resize_all(frame, shorter_to(size, frame.height, frame.width), spare, buffers);
            }
            Self::CenterCrop { height, width } => {
                crop(frame, center(frame, height, width), spare);
                std::mem::swap(frame, spare);
            }
            Self::RandomCrop { height, width, padding } => {
                let window = random_window(frame, [height, width], padding, rng)
                    .ok_or_else(|| frame.misfit(self.name(), "a padded image no smaller than the window"))?;
                crop(frame, window, spare);
                std::mem::swap(frame, spare);
            }
            Self::RandomResizedCrop { height, width, min_area, max_area } => {
                let window = random_part(frame.height, frame.width, [min_area, max_area], rng);
                resize(frame, window, [height, width], spare, buffers);
                std::mem::swap(frame, spare);
            }
            Self::RandomHorizontalFlip { probability } => {
                if uniform(rng, 0.0, 1.0) < probability {
                    flip_horizontal(frame);
                }
            }
            Self::RandomAffine { max_degrees, max_translate, min_scale, max_scale } => {
                let shift = |rng: &mut ChaCha8Rng, size: usize| {
                    uniform(rng, -max_translate, max_translate) * size as f32
                };
                let affine = Affine {
                    degrees: uniform(rng, -max_degrees, max_degrees),
                    right: shift(rng, frame.width),
                    down: shift(rng, frame.height),
                    scale: uniform(rng, min_scale, max_scale),
                };
                warp(frame, affine, spare);
                std::mem::swap(frame, spare);
            }
            Self::ToRgb => frame.to_rgb()?,
            Self::Normalize(ref normalization) => normalization.apply(frame)?,
        }
        Ok(())
    }
}

fn check_size(
    check: impl Fn(bool, &'static str, String, &'static str) -> Result<(), DataError>,
    height: usize,
    width: usize,
) -> Result<(), DataError> {
    check(height > 0 && width > 0, "size", format!("{height}x{width}"), "at least 1x1")
}

fn resize_all(frame: &mut Frame, to: [usize; 2], spare: &mut Frame, buffers: &mut Buffers) {
    if to == [frame.height, frame.width] {
        return;
    }
    let all = Window { top: 0, left: 0, height: frame.height, width: frame.width };
    resize(frame, all, to, spare, buffers);
    std::mem::swap(frame, spare);
}

/// The size whose shorter side is `size`; the longer one is rounded down, as in torchvision.
fn shorter_to(size: usize, height: usize, width: usize) -> [usize; 2] {
    if height <= width { [size, size * width / height] } else { [size * height / width, size] }
}

/// A window anywhere in the padded frame, or `None` when it does not fit.
fn random_window(
    frame: &Frame,
    [height, width]: [usize; 2],
    padding: usize,
    rng: &mut ChaCha8Rng,
) -> Option<Window> {
    let room_y = (frame.height + 2 * padding).checked_sub(height)?;
    let room_x = (frame.width + 2 * padding).checked_sub(width)?;
    let top = below(rng, room_y + 1) as isize - padding as isize;
    let left = below(rng, room_x + 1) as isize - padding as isize;
    Some(Window { top, left, height, width })
}

/// A part of the picture with an area and proportions drawn at random, as torchvision's
/// `RandomResizedCrop` draws them: ten tries, then the largest middle part of allowed proportions.
fn random_part(height: usize, width: usize, area: [f32; 2], rng: &mut ChaCha8Rng) -> Window {
    const RATIO: [f32; 2] = [3.0 / 4.0, 4.0 / 3.0];
    for _ in 0..10 {
        let target = (height * width) as f32 * uniform(rng, area[0], area[1]);
        let ratio = uniform(rng, RATIO[0].ln(), RATIO[1].ln()).exp();
        let w = (target * ratio).sqrt().round_ties_even() as usize;
        let h = (target / ratio).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = below(rng, height - h + 1) as isize;
            let left = below(rng, width - w + 1) as isize;
            return Window { top, left, height: h, width: w };
        }
    }
    let ratio = width as f32 / height as f32;
    let w = if ratio > RATIO[1] { (height as f32 * RATIO[1]).round_ties_even() as usize } else { width };
    let h = if ratio < RATIO[0] { (width as f32 / RATIO[0]).round_ties_even() as usize } else { height };
    let (w, h) = (w.clamp(1, width), h.clamp(1, height));
    Window { top: ((height - h) / 2) as isize, left: ((width - w) / 2) as isize, height: h, width: w }
}
