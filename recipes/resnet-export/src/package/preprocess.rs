//! `preprocess.json`: from a picture to the network's input, exactly as in training.

use burn_nccl_datasets::{DataError, Image, Pipeline, SampleKey, Scratch};
use serde::{Deserialize, Serialize};

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
        // Nothing is random, so that no key matters.
        let key = SampleKey { seed: 0, epoch: 0, index: 0 };
        let shape = self.transforms.apply(image, key, scratch, out).inspect_err(|_| out.truncate(start))?;
        debug_assert_eq!(shape, self.input, "checked when it was read");
        Ok(())
    }
}
