//! From the bytes of a picture to the network's input.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// A decoder gave up in disorder.
    #[error("the decoder cannot cope with this image")]
    Panicked,
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
            Self::Panicked => (self.to_string(), "save the image anew as JPEG or PNG".into()),
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
        let outcome = guarded(|| self.attempt(bytes));
        if matches!(outcome, Err(PictureError::Panicked)) {
            // What is left behind of a picture is not used again.
            self.scratch = Scratch::default();
        }
        outcome
    }

    fn attempt(&mut self, bytes: &[u8]) -> Result<Vec<f32>, PictureError> {
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

/// The decoders are written by others, and a picture that makes one of them panic must not end the program.
fn guarded<T>(prepare: impl FnOnce() -> Result<T, PictureError>) -> Result<T, PictureError> {
    // The panic hook has told what it was.
    catch_unwind(AssertUnwindSafe(prepare)).unwrap_or(Err(PictureError::Panicked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_the_picture() {
        let panicked = guarded::<()>(|| panic!("this panic is a part of the test")).unwrap_err();
        let (cause, remedy) = panicked.cause_and_remedy();
        assert_eq!(cause, "the decoder cannot cope with this image");
        assert!(remedy.starts_with("save the image anew"), "{remedy}");
        assert_eq!(guarded(|| Ok(7)).unwrap(), 7);
    }
}
