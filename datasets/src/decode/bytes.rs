//! Images in memory.

use std::io::{Cursor, ErrorKind};

use image::error::ImageError;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, guess_format};

use super::{DecodeError, jpeg};
use crate::Image;

/// A progressive JPEG file has some ten scans.
const MAX_SCANS: usize = 100;

/// What decoding may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// `width * height`, looked at before anything is allocated for pixels.
    pub max_pixels: u64,
    /// Bytes of the decoded image as it is stored: 3 a pixel for RGB, 8 for 16-bit RGBA.
    pub max_bytes: u64,
}

impl Default for DecodeLimits {
    /// 512 MiB, as many pixels as that has room for.
    fn default() -> Self {
        let max_bytes = 512 << 20;
        Self { max_pixels: max_bytes, max_bytes }
    }
}

impl DecodeLimits {
    /// Limits for images from strangers: so many pixels, with 4 bytes for each.
    ///
    /// A decoder takes up to three times `max_bytes` for a moment.
    pub fn for_pixels(max_pixels: u64) -> Self {
        Self { max_pixels, max_bytes: max_pixels.saturating_mul(4) }
    }
}

/// Decodes a JPEG or PNG image as RGB, class 0; the format is told by the content.
///
/// Grey is replicated, CMYK is converted, transparency is dropped, 16-bit values are reduced to 8, and an orientation in
/// the metadata is not applied (as in torchvision).
///
/// # Errors
///
/// [`DecodeError`]: what is no image, not whole, too large for the limits or damaged.
pub fn decode_image_bytes(bytes: &[u8], limits: &DecodeLimits) -> Result<Image, DecodeError> {
    let format = supported_format(bytes)?;
    if format == ImageFormat::Jpeg {
        match jpeg::scans(bytes) {
            None => return Err(DecodeError::Truncated { bytes: bytes.len() }),
            Some(scans) if scans > MAX_SCANS => return Err(DecodeError::Scans { max_scans: MAX_SCANS }),
            Some(_) => {}
        }
    }
    let refused = |error| refusal(error, bytes.len());
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut memory = Limits::no_limits();
    memory.max_alloc = Some(limits.max_bytes);
    reader.limits(memory);
    let decoder = reader.into_decoder().map_err(refused)?;
    check_size(&decoder, limits)?;
    let rgb = DynamicImage::from_decoder(decoder).map_err(refused)?.into_rgb8();
    let (height, width) = (rgb.height() as usize, rgb.width() as usize);
    Ok(Image { pixels: to_planes(rgb.as_raw(), height * width), channels: 3, height, width, label: 0 })
}

fn supported_format(bytes: &[u8]) -> Result<ImageFormat, DecodeError> {
    let found = match guess_format(bytes) {
        Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png)) => return Ok(format),
        Ok(ImageFormat::Gif) => "a GIF image",
        Ok(ImageFormat::WebP) => "a WebP image",
        Ok(ImageFormat::Avif) => "an AVIF image",
        Ok(ImageFormat::Tiff) => "a TIFF image",
        Ok(ImageFormat::Bmp) => "a BMP image",
        Ok(_) => "an image of another format",
        Err(_) if bytes.is_empty() => "nothing at all",
        Err(_) => "something else",
    };
    Err(DecodeError::Format { found })
}

/// The header alone has been read.
fn check_size(decoder: &impl ImageDecoder, limits: &DecodeLimits) -> Result<(), DecodeError> {
    let (width, height) = decoder.dimensions();
    let &DecodeLimits { max_pixels, max_bytes } = limits;
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err(DecodeError::TooLarge { width, height, max_pixels });
    }
    let bytes = decoder.total_bytes();
    if bytes > max_bytes {
        return Err(DecodeError::Memory { width, height, bytes, max_bytes });
    }
    Ok(())
}

fn refusal(error: ImageError, bytes: usize) -> DecodeError {
    match error {
        ImageError::IoError(source) if source.kind() == ErrorKind::UnexpectedEof => {
            DecodeError::Truncated { bytes }
        }
        error => DecodeError::Damaged(error),
    }
}

/// Interleaved RGB (HWC, as decoders give it) to three planes (CHW).
fn to_planes(interleaved: &[u8], plane: usize) -> Vec<u8> {
    let mut planes = vec![0; 3 * plane];
    let (red, rest) = planes.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    let targets = red.iter_mut().zip(green).zip(blue);
    for (((red, green), blue), pixel) in targets.zip(interleaved.chunks_exact(3)) {
        (*red, *green, *blue) = (pixel[0], pixel[1], pixel[2]);
    }
    planes
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma, Rgb, RgbImage, Rgba, RgbaImage};
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.into().write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn picture(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([(x * 9) as u8, (y * 7) as u8, (x * y) as u8]))
    }

    fn decode(bytes: &[u8]) -> Result<Image, DecodeError> {
        decode_image_bytes(bytes, &DecodeLimits::for_pixels(1 << 20))
    }

    /// A PNG file of this size whose header is all there is; the checksum is right.
    fn png_header(width: u32, height: u32) -> Vec<u8> {
        let mut header = b"IHDR".to_vec();
        header.extend(width.to_be_bytes());
        header.extend(height.to_be_bytes());
        header.extend([8, 2, 0, 0, 0]);
        let mut crc = flate2::Crc::new();
        crc.update(&header);
        [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0d".as_slice(),
            &header,
            &crc.sum().to_be_bytes(),
            b"\0\0\0\0IDAT\x35\xaf\x06\x1e",
        ]
        .concat()
    }

    #[test]
    fn every_kind_of_pixel_becomes_rgb() {
        let png = |image: DynamicImage| decode(&encoded(image, ImageFormat::Png)).unwrap().pixels;
        assert_eq!(png(GrayImage::from_pixel(1, 1, Luma([7])).into()), [7, 7, 7]);
        assert_eq!(png(RgbaImage::from_pixel(1, 1, Rgba([1, 2, 3, 0])).into()), [1, 2, 3]);
        let deep = image::ImageBuffer::from_pixel(1, 1, Rgb([0x1234u16, 0x8100, 0xffff]));
        // 16 bits to 8: v / 257, rounded.
        assert_eq!(png(deep.into()), [0x12, 0x80, 0xff]);
        let deep_grey = image::ImageBuffer::from_pixel(1, 1, Luma([0x8080u16]));
        assert_eq!(png(deep_grey.into()), [0x80; 3]);
        let grey = decode(&encoded(GrayImage::from_pixel(8, 8, Luma([200])), ImageFormat::Jpeg)).unwrap();
        assert_eq!((grey.channels, grey.height, grey.width), (3, 8, 8));
        assert!(grey.pixels.iter().all(|value| value.abs_diff(200) <= 1));
    }

    #[test]
    fn cmyk_progressive_and_palette_files_have_the_colours_that_pillow_sees() {
        let cases: [(&[u8], usize, [u8; 3]); 4] = [
            (include_bytes!("test_images/cmyk.jpg"), 0, [200, 40, 90]),
            (include_bytes!("test_images/progressive.jpg"), 0, [0, 0, 127]),
            (include_bytes!("test_images/progressive.jpg"), 255, [240, 240, 128]),
            (include_bytes!("test_images/palette.png"), 1, [255, 0, 0]),
        ];
        for (bytes, at, expected) in cases {
            let image = decode(bytes).unwrap();
            let plane = image.height * image.width;
            for (channel, expected) in expected.into_iter().enumerate() {
                let found = image.pixels[channel * plane + at];
                // Decoders round the inverse transform and the colours in ways of their own.
                assert!(found.abs_diff(expected) <= 3, "{found} is not {expected}");
            }
        }
    }

    #[test]
    fn what_is_no_jpeg_or_png_is_named() {
        for (bytes, expected) in [
            (b"GIF89a......".as_slice(), "a GIF image"),
            (b"", "nothing at all"),
            (b"<html>", "something else"),
            (b"RIFF\x10\0\0\0WEBPVP8 ", "a WebP image"),
        ] {
            let error = decode(bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Format { found } if found == expected), "{error}");
        }
    }

    #[test]
    fn an_image_beyond_the_limits_is_refused_before_it_is_decoded() {
        let huge = decode(&png_header(50_000, 50_000)).unwrap_err();
        assert!(matches!(huge, DecodeError::TooLarge { width: 50_000, height: 50_000, .. }), "{huge}");
        let widest = decode(&png_header(0x7fff_ffff, 0x7fff_ffff)).unwrap_err();
        assert!(matches!(widest, DecodeError::TooLarge { .. } | DecodeError::Damaged(_)), "{widest}");

        // A small JPEG file whose header says 65000x65000: SOF0 is ff c0, length, precision, height, width.
        let mut jpeg = encoded(picture(16, 16), ImageFormat::Jpeg);
        let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        jpeg[frame + 5..frame + 9].copy_from_slice(&[0xfd, 0xe8, 0xfd, 0xe8]);
        let bomb = decode(&jpeg).unwrap_err();
        assert!(matches!(bomb, DecodeError::TooLarge { width: 65_000, height: 65_000, .. }), "{bomb}");

        // 8 bytes a pixel where 4 are allowed.
        let deep = image::ImageBuffer::from_pixel(10, 10, Rgba([1u16, 2, 3, 4]));
        let limits = DecodeLimits::for_pixels(100);
        let error = decode_image_bytes(&encoded(deep, ImageFormat::Png), &limits).unwrap_err();
        assert!(
            matches!(error, DecodeError::Memory { bytes: 800, max_bytes: 400, .. } | DecodeError::Damaged(_)),
            "{error}"
        );
        let exact = encoded(picture(10, 10), ImageFormat::Png);
        assert!(decode_image_bytes(&exact, &DecodeLimits::for_pixels(100)).is_ok());
        assert!(decode_image_bytes(&exact, &DecodeLimits::for_pixels(99)).is_err());
    }

    #[test]
    fn a_jpeg_of_a_great_many_scans_is_refused() {
        let jpeg = encoded(picture(16, 16), ImageFormat::Jpeg);
        let start = jpeg.windows(2).position(|pair| pair == [0xff, START_OF_SCAN]).unwrap();
        let (head, scan) = jpeg[..jpeg.len() - 2].split_at(start);
        let mut many = head.to_vec();
        (0..101).for_each(|_| many.extend(scan));
        many.extend([0xff, 0xd9]);
        let error = decode(&many).unwrap_err();
        assert!(matches!(error, DecodeError::Scans { max_scans: 100 }), "{error}");
    }

    const START_OF_SCAN: u8 = 0xda;

    #[test]
    fn every_beginning_of_an_image_is_refused_and_none_panics() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png] {
            let whole = encoded(picture(24, 20), format);
            let expected = decode(&whole).unwrap();
            for length in 0..whole.len() {
                // Of a PNG file only the last chunk, IEND of 12 bytes, may be missing.
                if let Ok(image) = decode(&whole[..length]) {
                    assert!(
                        format == ImageFormat::Png && whole.len() - length <= 16,
                        "{format:?} of {length}"
                    );
                    assert_eq!(image, expected);
                }
            }
        }
    }

    #[test]
    fn damage_anywhere_gives_an_image_of_the_allowed_size_or_an_error() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut refused = 0;
        for format in [ImageFormat::Jpeg, ImageFormat::Png] {
            let whole = encoded(picture(24, 20), format);
            for _ in 0..3000 {
                let mut damaged = whole.clone();
                for _ in 0..=rng.next_u32() % 4 {
                    let at = rng.next_u32() as usize % damaged.len();
                    match rng.next_u32() % 4 {
                        0 => damaged[at] = rng.next_u32() as u8,
                        1 => damaged[at] ^= 1 << (rng.next_u32() % 8),
                        2 => drop(damaged.remove(at)),
                        _ => damaged.insert(at, 0xff),
                    }
                }
                match decode(&damaged) {
                    Ok(image) => assert!(image.pixels.len() <= 3 << 20 && image.channels == 3),
                    Err(_) => refused += 1,
                }
            }
        }
        // PNG has a checksum over nearly every byte.
        assert!(refused > 2500, "{refused}");
    }
}
