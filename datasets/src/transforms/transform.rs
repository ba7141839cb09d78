//! The transforms and their settings.

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::affine::{Affine, warp};
use super::crop::{crop, flip_horizontal};
use super::frame::{Frame, check_pixels};
use super::normalize::Normalization;
use super::resample::{Buffers, load_resized, resize};
use super::window::Window;
use crate::random::uniform;
use crate::{DataError, Image};

/// How many times the shorter side the longer one may be where resizing takes more than [`MANY_VALUES`]: wider panoramas
/// are hardly ever taken, and a picture of 1x60000 would become one of 256x15360000.
const MAX_PROPORTION: usize = 32;

/// Values that take 64 MiB.
const MANY_VALUES: usize = 1 << 24;

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
    /// The name in JSON and in messages.
    pub(super) fn name(&self) -> &'static str {
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

    /// Loads `image` already resized, and says so, where this transform does nothing else.
    pub(super) fn load_resized(
        &self,
        image: &Image,
        frame: &mut Frame,
        buffers: &mut Buffers,
    ) -> Result<bool, DataError> {
        check_pixels(image)?;
        match self.size_of([image.channels, image.height, image.width])? {
            Some(to) if to != [image.height, image.width] => load_resized(image, to, frame, buffers),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The height and width to which this transform resizes a whole picture of this shape; none where it does something
    /// else.
    fn size_of(&self, shape: [usize; 3]) -> Result<Option<[usize; 2]>, DataError> {
        let [channels, height, width] = shape;
        let to = match *self {
            Self::Resize { height, width } => [height, width],
            Self::ResizeShorter { size } => shorter_to(size, height, width),
            _ => return Ok(None),
        };
        // Every row is computed at its new width, and then every new row.
        let values = channels.saturating_mul(height.max(to[0])).saturating_mul(to[1]);
        let is_strip = height.max(width) / MAX_PROPORTION >= height.min(width);
        if values > MANY_VALUES && is_strip {
            let expected = "a longer side below 32 times the shorter one";
            return Err(DataError::TransformShape {
                transform: self.name(),
                channels,
                height,
                width,
                expected,
            });
        }
        Ok(Some(to))
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
            Self::Resize { .. } | Self::ResizeShorter { .. } => {
                if let Some(to) = self.size_of(frame.shape())? {
                    resize_all(frame, to, spare, buffers);
                }
            }
            Self::CenterCrop { height, width } => {
                crop(frame, Window::center(frame, height, width), spare);
                std::mem::swap(frame, spare);
            }
            Self::RandomCrop { height, width, padding } => {
                let window = Window::random(frame, [height, width], padding, rng)
                    .ok_or_else(|| frame.misfit(self.name(), "a padded image no smaller than the window"))?;
                crop(frame, window, spare);
                std::mem::swap(frame, spare);
            }
            Self::RandomResizedCrop { height, width, min_area, max_area } => {
                let window = Window::random_part(frame.height, frame.width, [min_area, max_area], rng);
                resize(frame, window, [height, width], spare, buffers);
                std::mem::swap(frame, spare);
            }
            Self::RandomHorizontalFlip { probability } if uniform(rng, 0.0, 1.0) < probability => {
                flip_horizontal(frame);
            }
            Self::RandomHorizontalFlip { .. } => {}
            Self::RandomAffine { max_degrees, max_translate, min_scale, max_scale } => {
                let affine = Affine::random(frame, max_degrees, max_translate, [min_scale, max_scale], rng);
                warp(frame, affine, spare);
                std::mem::swap(frame, spare);
            }
            Self::ToRgb => frame.make_rgb()?,
            Self::Normalize(ref normalization) => normalization.apply(frame)?,
        }
        Ok(())
    }
}

fn resize_all(frame: &mut Frame, to: [usize; 2], spare: &mut Frame, buffers: &mut Buffers) {
    if to == [frame.height, frame.width] {
        return;
    }
    resize(frame, Window::whole(frame), to, spare, buffers);
    std::mem::swap(frame, spare);
}

/// The size whose shorter side is `size`; the longer one is rounded down, as in torchvision.
fn shorter_to(size: usize, height: usize, width: usize) -> [usize; 2] {
    let longer = |long: usize, short: usize| size.saturating_mul(long) / short;
    if height <= width { [size, longer(width, height)] } else { [longer(height, width), size] }
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
    fn a_strip_that_would_become_a_giant_is_refused() {
        let shorter = Transform::ResizeShorter { size: 256 };
        let error = apply(&shorter, &mut ramp(3, 1, 60_000), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "transform resize_shorter cannot take an image of shape 3x1x60000: expected a longer side \
             below 32 times the shorter one"
        );
        let image = Image { pixels: vec![0; 180_000], channels: 3, height: 60_000, width: 1, label: 0 };
        let load = |frame| shorter.load_resized(&image, frame, &mut Buffers::default());
        assert!(load(&mut Frame::default()).is_err());
        apply(&shorter, &mut ramp(3, 10, 800), 0).unwrap();
    }

    #[test]
    fn a_photograph_is_taken_at_every_size_and_only_a_strip_is_refused() {
        let to = |size, height, width| Transform::ResizeShorter { size }.size_of([3, height, width]).ok();
        // 2400 is 2100 * 8 / 7, as for networks of 2100 pixels.
        assert_eq!(to(2400, 3000, 4000), Some(Some([2400, 3200])));
        assert_eq!(to(1170, 4000, 600), Some(Some([7800, 1170])));
        assert_eq!(to(4096, 500, 10_000), Some(Some([4096, 81_920])));
        assert_eq!(to(4096, 500, 16_000), None);
        assert_eq!(to(usize::MAX, 1, usize::MAX), None);
        let exactly = |height, width| {
            Transform::Resize { height: 4096, width: 4096 }.size_of([3, height, width]).is_ok()
        };
        assert!(exactly(10_000, 500) && exactly(500, 10_000) && !exactly(16_000, 500));
        // A PNG file of some kilobytes, whose 25 million rows would keep a thread for seconds.
        let strip =
            |height, width| Transform::Resize { height: 8, width: 8 }.size_of([3, height, width]).ok();
        assert_eq!((strip(25_000_000, 1), strip(1, 25_000_000)), (None, Some(Some([8, 8]))));
        // Small as it becomes, a strip is no burden.
        assert_eq!(to(8, 2, 800), Some(Some([8, 3200])));
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
}
