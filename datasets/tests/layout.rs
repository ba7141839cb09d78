//! One picture through every loader: a mix-up of rows, columns or channels in one of them shows here.

use std::fs;

use burn::data::dataset::Dataset;
use burn_nccl_datasets::{Cifar, Image, ImageFolder, MemoryDataset, Split, load_cifar};

/// Distinguishes channel, row and column: no two of the three can be swapped unseen.
fn value(channel: usize, y: usize, x: usize) -> u8 {
    (channel * 80 + y * 2 + x / 16) as u8
}

fn expected() -> Image {
    let mut pixels = Vec::new();
    for channel in 0..3 {
        for y in 0..32 {
            pixels.extend((0..32).map(|x| value(channel, y, x)));
        }
    }
    Image { pixels, channels: 3, height: 32, width: 32, label: 1 }
}

#[test]
fn cifar_folder_and_memory_agree_on_the_order_of_pixels() {
    let folder = tempfile::tempdir().unwrap();

    // CIFAR's description: the label, then the red plane row by row, then green, then blue.
    let mut record = vec![1_u8];
    record.extend(&expected().pixels);
    fs::write(folder.path().join("test_batch.bin"), record.repeat(10_000)).unwrap();
    let cifar = load_cifar(Cifar::Cifar10, folder.path(), Split::Test).unwrap();

    let root = folder.path().join("images");
    for class in ["first", "second"] {
        fs::create_dir_all(root.join("train").join(class)).unwrap();
        let picture = image::RgbImage::from_fn(32, 32, |x, y| {
            image::Rgb([0, 1, 2].map(|channel| value(channel, y as usize, x as usize)))
        });
        picture.save(root.join("train").join(class).join("picture.png")).unwrap();
    }
    let images = ImageFolder::open(&root, Split::Train).unwrap();

    let names = vec!["first".to_string(), "second".to_string()];
    let memory = MemoryDataset::new(expected().pixels, vec![1], [3, 32, 32], names).unwrap();

    assert_eq!(cifar.get(9_999).unwrap(), expected());
    assert_eq!(images.get(1).unwrap(), expected());
    assert_eq!(memory.get(0).unwrap(), expected());
}
