//! Images to compare engines with.

use std::ops::Range;
use std::sync::Arc;

use burn_nccl_datasets::{DataSource, ImageDataset, Scratch, Split};
use recipe_common::{RecipeError, Result};

use crate::package::Preprocess;

/// Some test images of a data source.
pub(crate) struct TestImages {
    dataset: Arc<dyn ImageDataset>,
    chosen: Vec<usize>,
}

/// Prepared images `[batch, channels, height, width]` with the class of each.
pub(crate) struct Prepared {
    pub(crate) values: Vec<f32>,
    pub(crate) labels: Vec<usize>,
}

impl TestImages {
    /// Opens the test images of `data`.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub(crate) fn open(data: &DataSource) -> Result<Self> {
        let dataset = data
            .load(Split::Test)
            .map_err(|error| RecipeError::data(format!("cannot open the test images of {data}"), error))?;
        let chosen = (0..dataset.len()).collect();
        Ok(Self { dataset, chosen })
    }

    /// At most `count` of them, spread evenly: the images of a class often stand together.
    pub(crate) fn spread(self, count: usize) -> Self {
        let (all, count) = (self.chosen.len(), count.min(self.chosen.len()));
        Self { chosen: (0..count).map(|index| self.chosen[index * all / count]).collect(), ..self }
    }

    /// The names of the classes.
    pub(crate) fn class_names(&self) -> &[String] {
        self.dataset.class_names()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.chosen.len()
    }

    /// Prepares the images of a range.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub(crate) fn prepare(&self, range: Range<usize>, preprocess: &Preprocess) -> Result<Prepared> {
        let failed = |error| RecipeError::data("cannot prepare a test image", error);
        let mut prepared = Prepared { values: Vec::new(), labels: Vec::new() };
        let mut scratch = Scratch::default();
        for &index in &self.chosen[range] {
            let image = self.dataset.get(index).map_err(failed)?;
            preprocess.apply(&image, &mut scratch, &mut prepared.values).map_err(failed)?;
            prepared.labels.push(image.label);
        }
        Ok(prepared)
    }
}

/// `count` numbers of [-2, 2), about as large as those of a normalised image, always the same.
///
/// Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", section 6 (splitmix64).
pub(crate) fn random_values(count: usize) -> Vec<f32> {
    let value = |index: u64| {
        let z = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // 24 bits, which f32 holds exactly.
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..count as u64).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_images_are_spread_over_all() {
        let images = TestImages::open(&DataSource::Digits).unwrap();
        assert_eq!(images.len(), 299);
        assert_eq!(images.spread(4).chosen, [0, 74, 149, 224]);
        let all = TestImages::open(&DataSource::Digits).unwrap().spread(1000);
        assert_eq!(all.chosen, (0..299).collect::<Vec<_>>());
        assert_eq!(TestImages::open(&DataSource::Digits).unwrap().spread(0).len(), 0);
    }

    #[test]
    fn random_values_fill_their_range_evenly() {
        let values = random_values(40_000);
        assert!(values.iter().all(|value| (-2.0..2.0).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        // 0 and 16 / 12, within five standard deviations.
        assert!(mean.abs() < 0.03 && (variance - 16.0 / 12.0).abs() < 0.03, "{mean} {variance}");
    }
}
