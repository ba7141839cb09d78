//! Pictures of one colour, and what is none.

use std::io::Cursor;

use image::{GrayImage, ImageFormat, Rgb, RgbImage};

pub(crate) const RED: [u8; 3] = [230, 20, 30];
pub(crate) const GREEN: [u8; 3] = [10, 200, 60];
pub(crate) const BLUE: [u8; 3] = [20, 40, 220];

pub(crate) fn png(colour: [u8; 3]) -> Vec<u8> {
    encoded(colour, ImageFormat::Png)
}

/// Its colours are one or two off.
pub(crate) fn jpeg(colour: [u8; 3]) -> Vec<u8> {
    encoded(colour, ImageFormat::Jpeg)
}

fn encoded(colour: [u8; 3], format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(40, 30, Rgb(colour)).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A PNG file of some kilobytes with so many black pixels.
pub(crate) fn strip(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    GrayImage::new(width, height).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// A JPEG file of some hundred bytes whose header says 65000 by 65000 pixels.
pub(crate) fn bomb() -> Vec<u8> {
    let mut bytes = jpeg(RED);
    // SOF0: marker, length, precision, height, width (ITU-T T.81, B.2.2).
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 9].copy_from_slice(&[0xfd, 0xe8, 0xfd, 0xe8]);
    bytes
}
