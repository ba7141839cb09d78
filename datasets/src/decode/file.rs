//! Image files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{DecodeError, DecodeLimits, decode_image_bytes};
use crate::{DataError, Image};

/// Reads a JPEG or PNG file as RGB; the format is told by the content, not by the name.
///
/// As [`decode_image_bytes`], with the class `label`. A file or an image of more than 512 MiB is refused.
///
/// # Errors
///
/// [`DataError::Read`] and [`DataError::Decode`] name the file.
pub fn decode_image(path: &Path, label: usize) -> Result<Image, DataError> {
    let read = |source| DataError::Read { path: path.into(), source };
    let decode = |source| DataError::Decode { path: path.into(), source };
    let limits = DecodeLimits::default();
    let bytes = read_whole(path, limits.max_bytes).map_err(read)?;
    let bytes = bytes.ok_or(DecodeError::FileTooLarge { max_bytes: limits.max_bytes }).map_err(decode)?;
    decode_image_bytes(&bytes, &limits).map(|image| Image { label, ..image }).map_err(decode)
}

/// The whole file; none of one that has more than `max_bytes`.
fn read_whole(path: &Path, max_bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= max_bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use image::{DynamicImage, GrayImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};

    use super::*;

    #[test]
    fn a_png_gives_its_red_green_and_blue_planes_row_by_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        // 2 wide, 3 high, so that a swap of the sides would show; red counts the pixels.
        let picture = RgbImage::from_fn(2, 3, |x, y| Rgb([(y * 2 + x) as u8, 100 + x as u8, 200 + y as u8]));
        picture.save(&path).unwrap();
        let image = decode_image(&path, 4).unwrap();
        assert_eq!((image.channels, image.height, image.width, image.label), (3, 3, 2, 4));
        #[rustfmt::skip]
        let planes = [
            0, 1, 2, 3, 4, 5,
            100, 101, 100, 101, 100, 101,
            200, 200, 201, 201, 202, 202,
        ];
        assert_eq!(image.pixels, planes);
    }

    #[test]
    fn a_jpeg_is_read_whatever_it_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("really_a_jpeg.png");
        let halves =
            RgbImage::from_fn(16, 16, |x, _| if x < 8 { Rgb([250, 10, 10]) } else { Rgb([10, 10, 250]) });
        halves.save_with_format(&path, ImageFormat::Jpeg).unwrap();
        let image = decode_image(&path, 0).unwrap();
        let value = |channel: usize, x: usize| image.pixels[(channel * 16 + 8) * 16 + x];
        // The block borders fall on the colour border; 16 leaves room for the quantisation.
        for (found, expected) in [
            (value(0, 1), 250_u8),
            (value(2, 1), 10),
            (value(0, 14), 10),
            (value(2, 14), 250),
            (value(1, 3), 10),
        ] {
            assert!(found.abs_diff(expected) <= 16, "{found} is not {expected}");
        }
    }

    #[test]
    fn grey_is_replicated_and_transparency_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let grey = folder.path().join("grey.png");
        GrayImage::from_raw(2, 1, vec![7, 9]).unwrap().save(&grey).unwrap();
        assert_eq!(decode_image(&grey, 0).unwrap().pixels, [7, 9, 7, 9, 7, 9]);
        let clear = folder.path().join("clear.png");
        DynamicImage::from(RgbaImage::from_pixel(1, 1, Rgba([1, 2, 3, 0]))).save(&clear).unwrap();
        assert_eq!(decode_image(&clear, 0).unwrap().pixels, [1, 2, 3]);
    }

    #[test]
    fn a_file_beyond_the_limit_is_refused_and_not_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 10]).unwrap();
        assert_eq!(read_whole(file.path(), 10).unwrap(), Some(vec![7; 10]));
        assert_eq!(read_whole(file.path(), 9).unwrap(), None);
        let error = DecodeError::FileTooLarge { max_bytes: 9 };
        assert_eq!(error.to_string(), "the file has more than 9 bytes");
    }

    #[test]
    fn a_file_that_cannot_be_decoded_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole.png");
        RgbImage::from_fn(40, 40, |x, y| Rgb([x as u8, y as u8, 3])).save(&whole).unwrap();
        let bytes = fs::read(&whole).unwrap();
        let mut jpeg = Vec::new();
        let picture = RgbImage::from_fn(40, 40, |x, y| Rgb([x as u8, y as u8, 3]));
        picture.write_to(&mut std::io::Cursor::new(&mut jpeg), ImageFormat::Jpeg).unwrap();
        let cases: [(&str, &[u8]); 5] = [
            // The decoder alone would fill the rest with grey.
            ("cut.jpg", &jpeg[..jpeg.len() - 40]),
            ("text.jpg", b"this is not an image"),
            ("empty.png", b""),
            ("cut.png", &bytes[..bytes.len() / 2]),
            ("header.png", &bytes[..20]),
        ];
        for (name, content) in cases {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            let error = decode_image(&path, 0).unwrap_err();
            assert!(matches!(&error, DataError::Decode { path: named, .. } if *named == path), "{error:?}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let missing = decode_image(&folder.path().join("gone.png"), 0).unwrap_err();
        assert!(matches!(missing, DataError::Read { .. }), "{missing:?}");
    }
}
