//! CIFAR-10 and CIFAR-100 in their binary form.
//!
//! A record is one label byte (CIFAR-100: coarse, then fine), then 3,072 pixel bytes: 32 rows of 32 red
//! values, then green, then blue, which is this crate's CHW order.
//!
//! Source: <https://www.cs.toronto.edu/~kriz/cifar.html>, "Binary version".

use std::fs;
use std::path::{Path, PathBuf};

use crate::{DataError, MemoryDataset, Split};

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;

/// Which of the two collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cifar {
    /// 10 classes; `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
    Cifar10,
    /// 100 fine classes; `train.bin` and `test.bin`.
    Cifar100,
}

impl Cifar {
    /// The names of the classes, in label order.
    pub fn class_names(self) -> &'static [&'static str] {
        match self {
            Cifar::Cifar10 => &CIFAR10_NAMES,
            Cifar::Cifar100 => &CIFAR100_NAMES,
        }
    }

    /// Bytes before the pixels; the last of them is the label.
    fn label_bytes(self) -> usize {
        match self {
            Cifar::Cifar10 => 1,
            Cifar::Cifar100 => 2,
        }
    }

    /// The files of a split and the number of records in each.
    fn files(self, split: Split) -> (&'static [&'static str], usize) {
        match (self, split) {
            (Cifar::Cifar10, Split::Train) => (&CIFAR10_TRAIN, 10_000),
            (Cifar::Cifar10, Split::Test) => (&["test_batch.bin"], 10_000),
            (Cifar::Cifar100, Split::Train) => (&["train.bin"], 50_000),
            (Cifar::Cifar100, Split::Test) => (&["test.bin"], 10_000),
        }
    }

    /// The folder that the official archive unpacks to.
    fn archive_folder(self) -> &'static str {
        match self {
            Cifar::Cifar10 => "cifar-10-batches-bin",
            Cifar::Cifar100 => "cifar-100-binary",
        }
    }
}

/// Reads a split from `folder`, which holds the binary files or the folder that the official archive
/// unpacks to.
///
/// # Errors
///
/// [`DataError::NotAFolder`] and [`DataError::Read`] for what cannot be opened;
/// [`DataError::WrongLength`] for a file that does not hold exactly the official number of records;
/// [`DataError::LabelOutOfRange`] for a record whose label is no class.
pub fn load_cifar(kind: Cifar, folder: &Path, split: Split) -> Result<MemoryDataset, DataError> {
    let metadata = fs::metadata(folder).map_err(|source| read_error(folder, source))?;
    if !metadata.is_dir() {
        return Err(DataError::NotAFolder { path: folder.into() });
    }
    let unpacked = folder.join(kind.archive_folder());
    let folder = if unpacked.is_dir() { unpacked } else { folder.to_path_buf() };

    let (files, records) = kind.files(split);
    let mut pixels = Vec::with_capacity(files.len() * records * PIXELS);
    let mut labels = Vec::with_capacity(files.len() * records);
    for file in files {
        let path = folder.join(file);
        let bytes = read_exact_length(&path, records * (kind.label_bytes() + PIXELS))?;
        append_records(kind, &path, &bytes, &mut pixels, &mut labels)?;
    }
    let names = kind.class_names().iter().map(|name| name.to_string()).collect();
    MemoryDataset::new(pixels, labels, SHAPE, names)
}

/// Reads a file whose length is known; the length is looked up first, so that a wrong file of any size
/// is never read.
fn read_exact_length(path: &Path, expected: usize) -> Result<Vec<u8>, DataError> {
    let expected = expected as u64;
    let wrong = |found| DataError::WrongLength { path: path.into(), expected, found };
    let found = fs::metadata(path).map_err(|source| read_error(path, source))?.len();
    if found != expected {
        return Err(wrong(found));
    }
    let bytes = fs::read(path).map_err(|source| read_error(path, source))?;
    if bytes.len() as u64 != expected {
        return Err(wrong(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Takes whole records apart into pixels and labels.
fn append_records(
    kind: Cifar,
    path: &Path,
    bytes: &[u8],
    pixels: &mut Vec<u8>,
    labels: &mut Vec<usize>,
) -> Result<(), DataError> {
    let num_classes = kind.class_names().len();
    for (record, bytes) in bytes.chunks_exact(kind.label_bytes() + PIXELS).enumerate() {
        let (label_bytes, image) = bytes.split_at(kind.label_bytes());
        let label = usize::from(label_bytes[kind.label_bytes() - 1]);
        if label >= num_classes {
            return Err(DataError::LabelOutOfRange { path: path.into(), record, label, num_classes });
        }
        pixels.extend_from_slice(image);
        labels.push(label);
    }
    Ok(())
}

fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read { path: PathBuf::from(path), source }
}

const CIFAR10_TRAIN: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];

const CIFAR10_NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

#[rustfmt::skip]
const CIFAR100_NAMES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

#[cfg(test)]
mod tests {
    use burn::data::dataset::Dataset;

    use super::*;
    use crate::ImageDataset;

    /// A file of `count` records; record i has label `i % classes` and pixels that start with i.
    fn records(kind: Cifar, count: usize) -> Vec<u8> {
        let size = kind.label_bytes() + PIXELS;
        let mut bytes = vec![0; count * size];
        for (i, record) in bytes.chunks_exact_mut(size).enumerate() {
            record[kind.label_bytes() - 1] = (i % kind.class_names().len()) as u8;
            record[kind.label_bytes()] = i as u8;
            record[size - 1] = 200;
        }
        bytes
    }

    #[test]
    fn a_test_file_of_the_official_length_is_read_from_either_folder() {
        let folder = tempfile::tempdir().unwrap();
        let unpacked = folder.path().join("cifar-100-binary");
        fs::create_dir(&unpacked).unwrap();
        fs::write(unpacked.join("test.bin"), records(Cifar::Cifar100, 10_000)).unwrap();
        for path in [folder.path(), &unpacked] {
            let data = load_cifar(Cifar::Cifar100, path, Split::Test).unwrap();
            assert_eq!((data.len(), data.num_classes()), (10_000, 100));
            let image = data.get(123).unwrap();
            assert_eq!((image.label, image.pixels[0], image.pixels[3071]), (23, 123, 200));
            assert_eq!(data.class_names()[23], "cloud");
        }
    }

    #[test]
    fn the_five_training_files_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        for (number, name) in CIFAR10_TRAIN.iter().enumerate() {
            let mut bytes = records(Cifar::Cifar10, 10_000);
            bytes[1] = number as u8 + 1;
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let data = load_cifar(Cifar::Cifar10, folder.path(), Split::Train).unwrap();
        assert_eq!(data.len(), 50_000);
        assert_eq!(data.get(40_000).unwrap().pixels[0], 5);
    }

    #[test]
    fn a_truncated_file_is_named_with_both_lengths() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test_batch.bin");
        // Cut at the end of a record: only the total gives it away.
        fs::write(&path, records(Cifar::Cifar10, 9_999)).unwrap();
        let error = load_cifar(Cifar::Cifar10, folder.path(), Split::Test).unwrap_err();
        let expected = format!(
            "{} is truncated or not in the expected format: expected 30730000 bytes, found 30726927; download it again",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_label_that_is_no_class_is_named_with_its_record() {
        let mut bytes = records(Cifar::Cifar10, 3);
        bytes[2 * 3073] = 10;
        let error = append_records(
            Cifar::Cifar10,
            Path::new("data_batch_2.bin"),
            &bytes,
            &mut Vec::new(),
            &mut Vec::new(),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "data_batch_2.bin: record 2 has label 10, expected 0..10; the file is damaged or of another dataset"
        );
    }

    #[test]
    fn a_missing_folder_or_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = load_cifar(Cifar::Cifar10, &folder.path().join("none"), Split::Test).unwrap_err();
        assert!(matches!(&error, DataError::Read { path, .. } if path.ends_with("none")), "{error}");
        let error = load_cifar(Cifar::Cifar10, folder.path(), Split::Train).unwrap_err();
        assert!(
            matches!(&error, DataError::Read { path, .. } if path.ends_with("data_batch_1.bin")),
            "{error}"
        );
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let error = load_cifar(Cifar::Cifar100, &file, Split::Test).unwrap_err();
        assert!(matches!(error, DataError::NotAFolder { .. }), "{error}");
    }
}
