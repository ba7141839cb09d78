//! From the bytes of a file to pixels.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::{ImageReader, error::ImageError};

use crate::{DataError, Image};

/// Reads a JPEG or PNG file as RGB; the format is told by the content, not by the name.
///
/// Grey is replicated, transparency is dropped, 16-bit values are reduced to 8, and an orientation
/// in the metadata is not applied (as in torchvision). An image that would need more than the
/// decoder's limit of 512 MiB is refused.
///
/// # Errors
///
/// [`DataError::Read`] and [`DataError::Decode`] name the file.
pub fn decode_image(path: &Path, label: usize) -> Result<Image, DataError> {
    let read = |source| DataError::Read { path: path.into(), source };
    let decode = |source| match source {
        ImageError::IoError(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => read(source),
        source => DataError::Decode { path: path.into(), source },
    };
    let file = File::open(path).map_err(read)?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format().map_err(read)?;
    let rgb = reader.decode().map_err(decode)?.into_rgb8();
    let (height, width) = (rgb.height() as usize, rgb.width() as usize);
    Ok(Image { pixels: to_planes(rgb.as_raw(), height * width), channels: 3, height, width, label })
}

/// Interleaved RGB (HWC, as decoders give it) to three planes (CHW).
fn to_planes(interleaved: &[u8], plane: usize) -> Vec<u8> {
    let mut planes = vec![0; 3 * plane];
    let (red, rest) = planes.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    for (i, pixel) in interleaved.chunks_exact(3).enumerate() {
        (red[i], green[i], blue[i]) = (pixel[0], pixel[1], pixel[2]);
    }
    planes
}
