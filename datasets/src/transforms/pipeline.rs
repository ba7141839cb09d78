//! A list of transforms, run with random numbers that belong to the sample.

use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::resample::Buffers;
use super::transform::Transform;
use crate::random::{Stream, generator};
use crate::{DataError, Image};

/// Transforms that are applied one after the other. In JSON: the list of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pipeline {
    transforms: Vec<Transform>,
}

/// What the random transforms of one image depend on, and nothing else: neither the worker nor the
/// order in which images are loaded changes the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: usize,
    /// The image's index in the dataset.
    pub index: usize,
}

/// Memory that one thread keeps from image to image.
#[derive(Debug, Default)]
pub struct Scratch {
    frame: Frame,
    spare: Frame,
    buffers: Buffers,
}

impl Pipeline {
    /// A pipeline of these transforms; [`validate`](Self::validate) checks their settings.
    pub fn new(transforms: impl IntoIterator<Item = Transform>) -> Self {
        Self { transforms: transforms.into_iter().collect() }
    }

    /// The transforms in order.
    pub fn transforms(&self) -> &[Transform] {
        &self.transforms
    }

    /// Checks the settings of all transforms.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidTransform`] for the first that has one out of range.
    pub fn validate(&self) -> Result<(), DataError> {
        self.transforms.iter().try_for_each(Transform::validate)
    }

    /// Transforms one image, appends its values in CHW order to `out` and returns their shape
    /// [channels, height, width]. Without a transform the values are the pixels divided by 255.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidImage`] for an image whose pixels do not fill its shape, and
    /// [`DataError::TransformShape`] when a transform cannot take what the one before it made.
    pub fn apply(
        &self,
        image: &Image,
        key: SampleKey,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> Result<[usize; 3], DataError> {
        let Scratch { frame, spare, buffers } = scratch;
        let mut rng = generator(Stream::Transform, key.seed, key.epoch as u64, key.index as u64);
        let rest = match self.transforms.split_first() {
            Some((first, rest)) if first.load_resized(image, frame, buffers)? => rest,
            _ => {
                frame.load(image)?;
                &self.transforms
            }
        };
        for transform in rest {
            transform.apply(frame, spare, buffers, &mut rng)?;
        }
        out.extend_from_slice(&frame.data);
        Ok(frame.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Normalization;

    fn image() -> Image {
        Image { pixels: (0..64).map(|v| v * 4).collect(), channels: 1, height: 8, width: 8, label: 0 }
    }

    fn augmenting() -> Pipeline {
        Pipeline::new([
            Transform::Resize { height: 16, width: 16 },
            Transform::RandomAffine { max_degrees: 10.0, max_translate: 0.1, min_scale: 0.9, max_scale: 1.1 },
            Transform::RandomCrop { height: 16, width: 16, padding: 2 },
            Transform::RandomHorizontalFlip { probability: 0.5 },
            Transform::ToRgb,
            Transform::Normalize(Normalization::imagenet()),
        ])
    }

    fn run(pipeline: &Pipeline, key: SampleKey, scratch: &mut Scratch) -> Vec<f32> {
        let mut out = Vec::new();
        let shape = pipeline.apply(&image(), key, scratch, &mut out).unwrap();
        assert_eq!(out.len(), shape.iter().product::<usize>());
        out
    }

    #[test]
    fn the_result_depends_on_seed_epoch_and_index_and_not_on_what_ran_before() {
        let key = SampleKey { seed: 1, epoch: 2, index: 3 };
        let (pipeline, mut used) = (augmenting(), Scratch::default());
        let first = run(&pipeline, key, &mut used);
        let others =
            [SampleKey { seed: 0, ..key }, SampleKey { epoch: 0, ..key }, SampleKey { index: 0, ..key }];
        for other in others {
            assert_ne!(run(&pipeline, other, &mut used), first);
        }
        assert_eq!(run(&pipeline, key, &mut used), first);
        assert_eq!(run(&pipeline, key, &mut Scratch::default()), first);
    }

    #[test]
    fn values_are_appended_in_channel_order_between_zero_and_one() {
        let image = Image { pixels: vec![0, 51, 255, 102], channels: 2, height: 1, width: 2, label: 0 };
        let mut out = vec![9.0];
        let key = SampleKey { seed: 0, epoch: 0, index: 0 };
        let shape = Pipeline::default().apply(&image, key, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!(shape, [2, 1, 2]);
        assert_eq!(out, [9.0, 0.0, 0.2, 1.0, 0.4]);
    }

    #[test]
    fn a_pipeline_is_saved_as_a_list_and_read_back() {
        let pipeline = Pipeline::new([Transform::Resize { height: 4, width: 5 }, Transform::ToRgb]);
        let json = serde_json::to_string(&pipeline).unwrap();
        assert_eq!(json, r#"[{"resize":{"height":4,"width":5}},"to_rgb"]"#);
        assert_eq!(serde_json::from_str::<Pipeline>(&json).unwrap(), pipeline);
        let all = serde_json::to_string(&augmenting()).unwrap();
        assert_eq!(serde_json::from_str::<Pipeline>(&all).unwrap(), augmenting());
        assert!(serde_json::from_str::<Pipeline>(r#"[{"resize":{"height":4,"widht":5}}]"#).is_err());
    }
}
