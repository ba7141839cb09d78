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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Stream, generator};

    fn rng(seed: u64) -> ChaCha8Rng {
        generator(Stream::Transform, seed, 0, 0)
    }

    fn ramp(channels: usize, height: usize, width: usize) -> Frame {
        let data = (1..=channels * height * width).map(|v| v as f32).collect();
        Frame { data, channels, height, width }
    }

    fn apply(transform: &Transform, frame: &mut Frame, seed: u64) -> Result<(), DataError> {
        transform.apply(frame, &mut Frame::default(), &mut Buffers::default(), &mut rng(seed))
    }

    #[test]
    fn every_transform_gives_the_size_it_promises() {
        let size = |transform: Transform, channels, height, width| {
            transform.validate().unwrap();
            let mut frame = ramp(channels, height, width);
            apply(&transform, &mut frame, 5).unwrap();
            assert_eq!(frame.data.len(), frame.shape().iter().product::<usize>());
            frame.shape()
        };
        assert_eq!(size(Transform::Resize { height: 5, width: 9 }, 3, 8, 8), [3, 5, 9]);
        // torchvision: 375x500 with Resize(256) is 256x341, the long side rounded down.
        assert_eq!(size(Transform::ResizeShorter { size: 256 }, 1, 375, 500), [1, 256, 341]);
        assert_eq!(size(Transform::ResizeShorter { size: 4 }, 1, 9, 4), [1, 9, 4]);
        assert_eq!(size(Transform::CenterCrop { height: 6, width: 2 }, 3, 4, 4), [3, 6, 2]);
        assert_eq!(size(Transform::RandomCrop { height: 4, width: 6, padding: 1 }, 3, 4, 4), [3, 4, 6]);
        let part = Transform::RandomResizedCrop { height: 7, width: 3, min_area: 0.08, max_area: 1.0 };
        assert_eq!(size(part.clone(), 3, 20, 30), [3, 7, 3]);
        assert_eq!(size(part, 3, 1, 50), [3, 7, 3]);
        assert_eq!(size(Transform::ToRgb, 1, 2, 3), [3, 2, 3]);
    }

    #[test]
    fn a_random_crop_reaches_every_window_of_the_padded_image() {
        let crop = Transform::RandomCrop { height: 2, width: 2, padding: 1 };
        let mut corners = std::collections::HashSet::new();
        for seed in 0..400 {
            let mut frame = ramp(1, 2, 2);
            apply(&crop, &mut frame, seed).unwrap();
            corners.insert(frame.data.iter().map(|&v| v as u32).collect::<Vec<_>>());
        }
        // 3 x 3 positions, all different; the middle one is the image itself.
        assert_eq!(corners.len(), 9);
        assert!(corners.contains(&vec![1, 2, 3, 4]) && corners.contains(&vec![0, 0, 0, 1]));
    }

    #[test]
    fn a_crop_larger_than_the_padded_image_is_an_error() {
        let crop = Transform::RandomCrop { height: 7, width: 2, padding: 1 };
        let error = apply(&crop, &mut ramp(1, 4, 4), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "transform random_crop cannot take an image of shape 1x4x4: expected a padded image no \
             smaller than the window"
        );
    }

    #[test]
    fn a_flip_happens_as_often_as_its_probability_says() {
        let flipped = |probability: f32| {
            let flip = Transform::RandomHorizontalFlip { probability };
            (0..1000)
                .filter(|&seed| {
                    let mut frame = ramp(1, 1, 2);
                    apply(&flip, &mut frame, seed).unwrap();
                    frame.data == [2.0, 1.0]
                })
                .count()
        };
        assert_eq!((flipped(0.0), flipped(1.0)), (0, 1000));
        // 250 expected, standard deviation 13.7: 5 of them either way.
        assert!((182..=318).contains(&flipped(0.25)), "{}", flipped(0.25));
    }

    #[test]
    fn a_random_part_stays_inside_and_has_the_allowed_area_and_proportions() {
        for seed in 0..500 {
            let w = random_part(40, 60, [0.25, 0.5], &mut rng(seed));
            assert!(w.top >= 0 && w.left >= 0);
            assert!(w.top as usize + w.height <= 40 && w.left as usize + w.width <= 60);
            let (area, ratio) = (w.height * w.width, w.width as f32 / w.height as f32);
            // Rounding to whole pixels moves both a little.
            assert!((550..=1250).contains(&area), "{w:?}");
            assert!((0.7..1.43).contains(&ratio), "{w:?}");
        }
        // No part of this strip has the proportions: the middle one with 4:3 is taken.
        let strip = Window { top: 0, left: 48, height: 3, width: 4 };
        assert_eq!(random_part(3, 100, [1.0, 1.0], &mut rng(0)), strip);
    }

    #[test]
    fn settings_out_of_range_are_named_with_their_limits() {
        let error = |transform: Transform| transform.validate().unwrap_err().to_string();
        assert_eq!(
            error(Transform::RandomHorizontalFlip { probability: 1.5 }),
            "transform random_horizontal_flip: probability is 1.5, expected 0 to 1"
        );
        assert_eq!(
            error(Transform::Resize { height: 0, width: 3 }),
            "transform resize: size is 0x3, expected at least 1x1"
        );
        let affine = |max_degrees, max_translate, min_scale, max_scale| Transform::RandomAffine {
            max_degrees,
            max_translate,
            min_scale,
            max_scale,
        };
        assert!(affine(10.0, 0.1, 0.9, 1.1).validate().is_ok());
        for bad in [affine(-1.0, 0.1, 1.0, 1.0), affine(0.0, 2.0, 1.0, 1.0), affine(0.0, 0.0, 0.0, 1.0)] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
        assert!(affine(0.0, 0.0, 1.0, f32::NAN).validate().is_err());
        let part =
            |min_area, max_area| Transform::RandomResizedCrop { height: 1, width: 1, min_area, max_area };
        assert!(part(0.0, 1.0).validate().is_err() && part(0.5, 0.4).validate().is_err());
        assert!(Transform::ResizeShorter { size: 0 }.validate().is_err());
    }
}
