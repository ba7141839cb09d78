//! The picture while it is being transformed.

use crate::{DataError, Image};

/// An image as `f32` planes in CHW order; black is 0 and white 1 until it is normalised.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub(super) data: Vec<f32>,
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Frame {
    /// Takes over an image's pixels, scaled from 0..=255 to 0..=1.
    pub(super) fn load(&mut self, image: &Image) -> Result<(), DataError> {
        check_pixels(image)?;
        let &Image { ref pixels, channels, height, width, .. } = image;
        self.data.clear();
        self.data.extend(pixels.iter().map(|&value| f32::from(value) / 255.0));
        (self.channels, self.height, self.width) = (channels, height, width);
        Ok(())
    }

    /// Becomes a black frame of this shape, keeping its memory.
    pub(super) fn reset(&mut self, channels: usize, height: usize, width: usize) {
        self.data.clear();
        self.data.resize(channels * height * width, 0.0);
        (self.channels, self.height, self.width) = (channels, height, width);
    }

    pub(super) fn shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// The values of each channel.
    pub(super) fn planes(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.height * self.width)
    }

    /// As [`planes`](Self::planes), to be changed.
    pub(super) fn planes_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.data.chunks_exact_mut(self.height * self.width)
    }

    /// Makes three equal planes of one; leaves three as they are.
    pub(super) fn make_rgb(&mut self) -> Result<(), DataError> {
        match self.channels {
            3 => Ok(()),
            1 => {
                let plane = self.data.len();
                self.data.extend_from_within(..);
                self.data.extend_from_within(..plane);
                self.channels = 3;
                Ok(())
            }
            _ => Err(self.misfit("to_rgb", "1 or 3 channels")),
        }
    }

    /// The error that `transform` cannot take this frame.
    pub(super) fn misfit(&self, transform: &'static str, expected: &'static str) -> DataError {
        let [channels, height, width] = self.shape();
        DataError::TransformShape { transform, channels, height, width, expected }
    }
}

/// Refuses an image whose pixels do not fill its shape.
pub(super) fn check_pixels(image: &Image) -> Result<(), DataError> {
    let &Image { ref pixels, channels, height, width, .. } = image;
    if pixels.is_empty() || pixels.len() != channels * height * width {
        return Err(DataError::InvalidImage { channels, height, width, found: pixels.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_whose_pixels_do_not_fill_its_shape_is_refused() {
        let image = |count, height| Image { pixels: vec![0; count], channels: 1, height, width: 2, label: 0 };
        let error = Frame::default().load(&image(5, 2)).unwrap_err().to_string();
        assert!(error.starts_with("an image of shape 1x2x2 has 5 pixel values"), "{error}");
        assert!(Frame::default().load(&image(0, 0)).is_err());
        assert!(Frame::default().load(&image(4, 2)).is_ok());
    }

    #[test]
    fn grey_is_replicated_and_other_channel_counts_are_refused() {
        let mut frame = Frame { data: vec![0.25, 0.5], channels: 1, height: 1, width: 2 };
        frame.make_rgb().unwrap();
        assert_eq!(frame.data, [0.25, 0.5, 0.25, 0.5, 0.25, 0.5]);
        assert_eq!(frame.shape(), [3, 1, 2]);
        frame.make_rgb().unwrap();
        assert_eq!(frame.channels, 3);
        frame.channels = 2;
        let error = frame.make_rgb().unwrap_err().to_string();
        assert_eq!(error, "transform to_rgb cannot take an image of shape 2x1x2: expected 1 or 3 channels");
    }
}
