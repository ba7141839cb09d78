//! Training data from a formula, the same in every process.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Classes of the labels.
pub const CLASSES: usize = 3;
/// Channels, height and width of an image.
pub const IMAGE: [usize; 3] = [2, 6, 6];
/// Images of one rank in one step.
pub const ROWS: usize = 4;

/// A number in `[-1, 1)` that depends on `index` alone, without visible pattern.
///
/// Source: SplitMix64 of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
pub fn noise(index: u64) -> f64 {
    let mut x = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The batch of `rank` in `step`: images `[ROWS, 2, 6, 6]` and labels `[ROWS]`.
pub fn batch(step: usize, rank: usize, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let [channels, height, width] = IMAGE;
    let count = ROWS * channels * height * width;
    let first = ((step * 64 + rank) * count) as u64;
    let values: Vec<f64> = (0..count as u64).map(|i| noise(first + i)).collect();
    let labels: Vec<i64> = (0..ROWS).map(|row| ((step + 2 * rank + row) % CLASSES) as i64).collect();
    let images = TensorData::new(values, [ROWS, channels, height, width]);
    (Tensor::from_data(images, device), Tensor::from_data(TensorData::new(labels, [ROWS]), device))
}
