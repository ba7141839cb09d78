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
        frame.load(image);
        for transform in &self.transforms {
            transform.apply(frame, spare, buffers, &mut rng)?;
        }
        out.extend_from_slice(&frame.data);
        Ok(frame.shape())
    }
}
