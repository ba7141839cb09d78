//! Images of one size, all held in memory.

use burn::data::dataset::Dataset;

use crate::{DataError, Image, ImageDataset};

/// A dataset of equally sized images in one buffer.
#[derive(Clone, Debug)]
pub struct MemoryDataset {
    pixels: Vec<u8>,
    labels: Vec<usize>,
    shape: [usize; 3],
    class_names: Vec<String>,
}

impl MemoryDataset {
    /// A dataset of `labels.len()` images of `shape` [channels, height, width], whose `pixels` lie one
    /// image after the other, each in CHW order.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidMemory`] when `pixels` does not hold exactly one image per label, when a
    /// label has no class name, or when a side of the shape is 0.
    pub fn new(
        pixels: Vec<u8>,
        labels: Vec<usize>,
        shape: [usize; 3],
        class_names: Vec<String>,
    ) -> Result<Self, DataError> {
        let [channels, height, width] = shape;
        let invalid = |reason| DataError::InvalidMemory { channels, height, width, reason };
        if shape.contains(&0) {
            return Err(invalid("each side must be at least 1".into()));
        }
        let expected = labels.len() * channels * height * width;
        if pixels.len() != expected {
            let found = pixels.len();
            return Err(invalid(format!(
                "{} labels need {expected} pixel values, found {found}",
                labels.len()
            )));
        }
        if let Some(label) = labels.iter().find(|&&label| label >= class_names.len()) {
            return Err(invalid(format!("label {label} with {} class names", class_names.len())));
        }
        Ok(Self { pixels, labels, shape, class_names })
    }
}

impl Dataset<Image, DataError> for MemoryDataset {
    fn get(&self, index: usize) -> Result<Image, DataError> {
        let label = self.labels[index];
        let [channels, height, width] = self.shape;
        let size = channels * height * width;
        let pixels = self.pixels[index * size..(index + 1) * size].to_vec();
        Ok(Image { pixels, channels, height, width, label })
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}

impl ImageDataset for MemoryDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["a".into(), "b".into()]
    }

    #[test]
    fn each_index_gives_its_own_planes_and_label() {
        let data = MemoryDataset::new((0..16).collect(), vec![1, 0], [2, 2, 2], names()).unwrap();
        let image = data.get(1).unwrap();
        assert_eq!(image.pixels, [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!((image.channels, image.height, image.width, image.label), (2, 2, 2, 0));
        assert_eq!((data.len(), data.num_classes()), (2, 2));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_with_both_numbers() {
        let short = MemoryDataset::new(vec![0; 7], vec![0, 1], [1, 2, 2], names()).unwrap_err();
        assert_eq!(
            short.to_string(),
            "in-memory dataset of 1x2x2 images does not fit together: 2 labels need 8 pixel values, found 7"
        );
        let label = MemoryDataset::new(vec![0; 4], vec![2], [1, 2, 2], names()).unwrap_err();
        assert!(label.to_string().ends_with("label 2 with 2 class names"), "{label}");
        assert!(MemoryDataset::new(vec![], vec![], [1, 0, 2], names()).is_err());
    }
}
