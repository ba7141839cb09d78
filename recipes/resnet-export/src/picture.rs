//! From the bytes of a picture to the network's input.

use burn_nccl_datasets::{DataError, DecodeError, DecodeLimits, Scratch, decode_image_bytes};

use crate::package::Preprocess;

/// Beyond this many pixels the memory of one picture is not kept for the next.
const KEEP_PIXELS: usize = 1 << 20;

/// What makes input of pictures; one for each thread.
pub(crate) struct Preparation {
    preprocess: Preprocess,
    limits: DecodeLimits,
    scratch: Scratch,
}

/// Why a picture gives no input.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PictureError {
    /// It cannot be decoded.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// It cannot be brought into the network's shape.
    #[error("{0}")]
    Transform(#[from] DataError),
    /// The transforms make another shape of it than the network takes.
    #[error("the picture became {found} values, and the network takes {expected}")]
    Shape {
        /// Values that came out.
        found: usize,
        /// `channels * height * width` of the network's input.
        expected: usize,
    },
}

impl PictureError {
    /// Why, and what to do.
    pub(crate) fn cause_and_remedy(&self) -> (String, String) {
        match self {
            Self::Decode(error) => (error.to_string(), error.remedy().into()),
            Self::Transform(error) => (error.to_string(), "give another picture".into()),
            Self::Shape { .. } => {
                (self.to_string(), "export the network with transforms that end in its size".into())
            }
        }
    }
}

impl Preparation {
    /// Prepares pictures of at most `max_pixels`.
    pub(crate) fn new(preprocess: Preprocess, max_pixels: u64) -> Self {
        Self { preprocess, limits: DecodeLimits::for_pixels(max_pixels), scratch: Scratch::default() }
    }

    /// The input `[channels, height, width]` for the JPEG or PNG picture.
    ///
    /// # Errors
    ///
    /// [`PictureError`].
    pub(crate) fn prepare(&mut self, bytes: &[u8]) -> Result<Vec<f32>, PictureError> {
        let image = decode_image_bytes(bytes, &self.limits)?;
        let expected = self.preprocess.input.iter().product();
        let mut values = Vec::with_capacity(expected);
        let applied = self.preprocess.apply(&image, &mut self.scratch, &mut values);
        if image.height * image.width > KEEP_PIXELS {
            self.scratch = Scratch::default();
        }
        applied?;
        if values.len() != expected {
            return Err(PictureError::Shape { found: values.len(), expected });
        }
        Ok(values)
    }
}
