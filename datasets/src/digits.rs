//! The bundled handwritten digits: real data that needs no download.

use std::io::Read;
use std::sync::OnceLock;

use flate2::read::GzDecoder;

use crate::{MemoryDataset, Split};

const DIGITS_CSV_GZ: &[u8] = include_bytes!("../data/digits.csv.gz");
const SIDE: usize = 8;
const CLASSES: usize = 10;
/// The largest pixel value in the file.
const INK: usize = 16;

/// The 1,498 training or 299 test images, 8x8 pixels, one channel, white on black.
///
/// The pixel values 0..=16 of the file are scaled to 0..=255. Each sixth image (index % 6 == 5) is a
/// test image. The file is unpacked once per process.
///
/// Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
/// Learning Repository, 1998, licence CC BY 4.0.
pub fn load_digits(split: Split) -> MemoryDataset {
    let (pixels, labels) = all_digits();
    let chosen = || (0..labels.len()).filter(|&index| split.takes(index));
    let size = SIDE * SIDE;
    let split_pixels =
        chosen().flat_map(|index| &pixels[index * size..(index + 1) * size]).copied().collect();
    let split_labels = chosen().map(|index| labels[index]).collect();
    let names = (0..CLASSES).map(|class| class.to_string()).collect();
    MemoryDataset::new(split_pixels, split_labels, [1, SIDE, SIDE], names)
        .expect("the bundled file is checked by the tests")
}

/// Pixels and labels of all images, in file order.
fn all_digits() -> &'static (Vec<u8>, Vec<usize>) {
    static DIGITS: OnceLock<(Vec<u8>, Vec<usize>)> = OnceLock::new();
    DIGITS.get_or_init(|| {
        let mut text = String::new();
        // The bytes are part of the program, so a failure here is a broken build, not bad input.
        GzDecoder::new(DIGITS_CSV_GZ).read_to_string(&mut text).expect("the bundled file is gzip");
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let (values, label) = line.rsplit_once(',').expect("a label ends each line");
            pixels.extend(values.split(',').map(|value| scale(number(value))));
            labels.push(number(label));
        }
        (pixels, labels)
    })
}

fn number(text: &str) -> usize {
    text.trim().parse().expect("the bundled file holds integers")
}

/// 0..=16 to 0..=255, rounded.
fn scale(ink: usize) -> u8 {
    ((ink * 255 + INK / 2) / INK) as u8
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::Dataset;

    use super::*;
    use crate::ImageDataset;

    #[test]
    fn the_splits_have_the_stated_sizes_and_classes() {
        let (train, test) = (load_digits(Split::Train), load_digits(Split::Test));
        assert_eq!((train.len(), test.len()), (1498, 299));
        assert_eq!((train.num_classes(), train.class_names()[7].as_str()), (10, "7"));
        let mut per_class = [0; 10];
        for index in 0..train.len() {
            per_class[train.get(index).unwrap().label] += 1;
        }
        for index in 0..test.len() {
            per_class[test.get(index).unwrap().label] += 1;
        }
        // Counts that the UCI repository states for the test set of this collection.
        assert_eq!(per_class, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn the_first_image_is_the_files_first_line_scaled() {
        let image = load_digits(Split::Train).get(0).unwrap();
        assert_eq!((image.channels, image.height, image.width, image.label), (1, 8, 8, 0));
        // The line starts 0,0,5,13,9,1,0,0; 5 * 255 / 16 = 79.7, 13 -> 207.2, 9 -> 143.4, 1 -> 15.9.
        assert_eq!(image.pixels[..8], [0, 0, 80, 207, 143, 16, 0, 0]);
        assert_eq!((scale(0), scale(16)), (0, 255));
    }

    #[test]
    fn every_sixth_line_is_a_test_image() {
        let (pixels, labels) = all_digits();
        let test = load_digits(Split::Test);
        for (position, index) in [(0, 5), (1, 11), (298, 1793)] {
            let image = test.get(position).unwrap();
            assert_eq!(image.label, labels[index]);
            assert_eq!(image.pixels, pixels[index * 64..(index + 1) * 64]);
        }
        assert_eq!(load_digits(Split::Train).get(5).unwrap().pixels, pixels[6 * 64..7 * 64]);
    }
}
