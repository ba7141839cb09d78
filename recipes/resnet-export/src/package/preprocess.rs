//! `preprocess.json`: from a picture to the network's input, exactly as in training.

use burn_nccl_datasets::{DataError, Image, Pipeline, SampleKey, Scratch, Transform};
use serde::{Deserialize, Serialize};

/// The longest side that a transform may make, in pixels.
pub(crate) const MAX_SIDE: usize = 4096;

/// More transforms than any run has, and few enough to be no burden for each picture.
const MAX_TRANSFORMS: usize = 32;

/// The transforms, and the shape that they must end in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preprocess {
    /// `[channels, height, width]` of the network's input.
    pub(crate) input: [usize; 3],
    /// Those that the run tested with, nothing random among them.
    pub(crate) transforms: Pipeline,
}

impl Preprocess {
    /// Checks that the transforms are the same for every picture, of bounded size, and end in the network's input.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.transforms.validate().map_err(|error| error.to_string())?;
        let count = self.transforms.transforms().len();
        if count > MAX_TRANSFORMS {
            return Err(format!("{count} transforms, and {MAX_TRANSFORMS} are allowed"));
        }
        for transform in self.transforms.transforms() {
            let side = largest_side(transform).ok_or_else(|| format!("{transform:?} is random"))?;
            if side > MAX_SIDE {
                return Err(format!("{transform:?} makes an image of more than {MAX_SIDE} pixels a side"));
            }
        }
        let [_, height, width] = self.input;
        let picture = Image { pixels: vec![0; 3 * height * width], channels: 3, height, width, label: 0 };
        let found = self.transformed(&picture, &mut Scratch::default(), &mut Vec::new());
        match found {
            Ok(found) if found == self.input => Ok(()),
            Ok(found) => {
                Err(format!("the transforms end in {found:?} and the network takes {:?}", self.input))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Appends the network's input for `image` to `out`, which stays as it was where it fails.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::apply`].
    pub(crate) fn apply(
        &self,
        image: &Image,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let start = out.len();
        let shape = self.transformed(image, scratch, out).inspect_err(|_| out.truncate(start))?;
        debug_assert_eq!(shape, self.input, "checked when it was read");
        Ok(())
    }

    fn transformed(
        &self,
        image: &Image,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<[usize; 3], DataError> {
        // Nothing is random, so that no key matters.
        self.transforms.apply(image, SampleKey { seed: 0, epoch: 0, index: 0 }, scratch, out)
    }
}

/// The longest side that a transform makes by itself, 0 where it keeps the image's; none for one that is random.
fn largest_side(transform: &Transform) -> Option<usize> {
    match *transform {
        Transform::Resize { height, width } | Transform::CenterCrop { height, width } => {
            Some(height.max(width))
        }
        Transform::ResizeShorter { size } => Some(size),
        Transform::ToRgb | Transform::Normalize(_) => Some(0),
        Transform::RandomCrop { .. }
        | Transform::RandomResizedCrop { .. }
        | Transform::RandomHorizontalFlip { .. }
        | Transform::RandomAffine { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use burn_nccl_datasets::DataSource;

    use super::*;

    fn of(source: &DataSource, size: usize) -> Preprocess {
        Preprocess { input: [3, size, size], transforms: source.eval_transforms(size) }
    }

    #[test]
    fn the_test_transforms_of_every_source_pass_and_come_back_from_json() {
        for source in [DataSource::Digits, DataSource::Folder(PathBuf::from("x"))] {
            for size in [8, 32, 224] {
                let preprocess = of(&source, size);
                preprocess.check().unwrap();
                let json = serde_json::to_string(&preprocess).unwrap();
                assert_eq!(serde_json::from_str::<Preprocess>(&json).unwrap(), preprocess);
            }
        }
    }

    #[test]
    fn random_huge_and_ill_fitting_transforms_are_refused() {
        let why = |input, transforms: Vec<Transform>| {
            Preprocess { input, transforms: Pipeline::new(transforms) }.check().unwrap_err()
        };
        let mut train = of(&DataSource::Digits, 8);
        train.transforms = DataSource::Digits.train_transforms(8);
        assert!(train.check().unwrap_err().contains("RandomAffine"));
        let huge = Transform::Resize { height: 5000, width: 8 };
        assert!(why([3, 8, 8], vec![huge]).contains("4096"));
        let small = Transform::Resize { height: 4, width: 8 };
        let why_small = why([3, 8, 8], vec![small]);
        assert_eq!(why_small, "the transforms end in [3, 4, 8] and the network takes [3, 8, 8]");
        let none = Transform::Resize { height: 0, width: 8 };
        assert!(why([3, 8, 8], vec![none]).contains("at least 1x1"));
    }

    #[test]
    fn a_strip_that_would_be_huge_is_refused_before_it_is() {
        let preprocess = of(&DataSource::Folder(PathBuf::from("x")), 224);
        let strip = Image { pixels: vec![7; 3 * 60_000], channels: 3, height: 1, width: 60_000, label: 0 };
        let mut out = vec![1.0];
        let error = preprocess.apply(&strip, &mut Scratch::default(), &mut out).unwrap_err();
        assert!(matches!(error, DataError::TransformShape { width: 60_000, .. }), "{error}");
        assert_eq!(out, [1.0]);
        // Panoramas pass: 256 times 256 * 20 pixels.
        let panorama = Image { pixels: vec![7; 3 * 40 * 800], channels: 3, height: 40, width: 800, label: 0 };
        preprocess.apply(&panorama, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!(out.len(), 1 + 3 * 224 * 224);
    }
}
