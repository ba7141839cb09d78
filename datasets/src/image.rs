//! The sample type, and what a dataset of images is.

use burn::data::dataset::Dataset;

use crate::DataError;

/// One decoded image with its class.
///
/// `pixels` is `u8` in **channels, height, width** order (CHW, each channel one plane, rows from the
/// top): the value at (c, y, x) is `pixels[(c * height + y) * width + x]`. Every dataset of this crate
/// uses this order; colour channels are red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `channels * height * width` values, CHW.
    pub pixels: Vec<u8>,
    /// Number of planes: 1 for grey, 3 for RGB.
    pub channels: usize,
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Index of the class, below the dataset's `num_classes`.
    pub label: usize,
}

/// Images with classes: Burn's [`Dataset`] with a typed error, and the names of the classes.
///
/// As Burn prescribes, `get` panics for an index of `len()` or more, and returns `Err` when an image
/// that should exist cannot be read.
pub trait ImageDataset: Dataset<Image, DataError> {
    /// The name of each class, in label order.
    fn class_names(&self) -> &[String];

    /// The number of classes; labels are below it.
    fn num_classes(&self) -> usize {
        self.class_names().len()
    }
}

/// Which part of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// The images to train on.
    Train,
    /// The images held back to measure accuracy.
    Test,
}

impl Split {
    /// The split's name in messages: `train` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "test",
        }
    }

    /// Whether the image at `position` belongs to this split where the data has none of its own: each
    /// sixth image (position % 6 == 5) is for the test.
    pub(crate) fn takes(self, position: usize) -> bool {
        (position % 6 == 5) == (self == Split::Test)
    }
}
