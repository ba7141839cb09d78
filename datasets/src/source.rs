//! Naming a dataset on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Cifar, DataError, ImageDataset, ImageFolder, Normalization, Pipeline, Split, Transform, load_cifar,
    load_digits,
};

/// Where the images come from: `digits`, `cifar10:PATH`, `cifar100:PATH` or `folder:PATH`, which is also
/// how it is saved in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataSource {
    /// The bundled digits.
    #[default]
    Digits,
    /// CIFAR-10 or CIFAR-100 binary files in a folder.
    Cifar(Cifar, PathBuf),
    /// A folder with one folder per class.
    Folder(PathBuf),
}

impl DataSource {
    /// Opens a split. Digits and CIFAR are read into memory; an image folder is listed, and its images
    /// are decoded when they are asked for.
    ///
    /// # Errors
    ///
    /// Those of [`load_cifar`] and [`ImageFolder::open`].
    pub fn load(&self, split: Split) -> Result<Arc<dyn ImageDataset>, DataError> {
        Ok(match self {
            DataSource::Digits => Arc::new(load_digits(split)),
            DataSource::Cifar(kind, path) => Arc::new(load_cifar(*kind, path, split)?),
            DataSource::Folder(path) => Arc::new(ImageFolder::open(path, split)?),
        })
    }

    /// The pixel statistics to normalise this source by: its own where they are known, ImageNet's for
    /// an image folder.
    pub fn normalization(&self) -> Normalization {
        match self {
            DataSource::Digits => Normalization::digits(),
            DataSource::Cifar(Cifar::Cifar10, _) => Normalization::cifar10(),
            DataSource::Cifar(Cifar::Cifar100, _) => Normalization::cifar100(),
            DataSource::Folder(_) => Normalization::imagenet(),
        }
    }

    /// The usual augmentation of this source, to RGB of `size` by `size` pixels.
    ///
    /// Digits are turned, scaled and shifted a little, never mirrored; CIFAR is cropped from a border
    /// of an eighth and mirrored; image folders get random resized crops and mirroring.
    pub fn train_transforms(&self, size: usize) -> Pipeline {
        let (height, width) = (size, size);
        let flip = Transform::RandomHorizontalFlip { probability: 0.5 };
        let augment = match self {
            DataSource::Digits => vec![
                Transform::Resize { height, width },
                Transform::RandomAffine {
                    max_degrees: 10.0,
                    max_translate: 0.08,
                    min_scale: 0.9,
                    max_scale: 1.1,
                },
            ],
            DataSource::Cifar(..) => vec![
                Transform::Resize { height, width },
                Transform::RandomCrop { height, width, padding: size / 8 },
                flip,
            ],
            DataSource::Folder(_) => {
                vec![Transform::RandomResizedCrop { height, width, min_area: 0.08, max_area: 1.0 }, flip]
            }
        };
        Pipeline::new(augment.into_iter().chain(self.to_input()))
    }

    /// The transforms for evaluation, to RGB of `size` by `size` pixels, without anything random.
    ///
    /// Image folders are resized to 8/7 of the size and cropped in the middle (256 and 224 for ImageNet).
    pub fn eval_transforms(&self, size: usize) -> Pipeline {
        let (height, width) = (size, size);
        let fit = match self {
            DataSource::Folder(_) => {
                vec![Transform::ResizeShorter { size: size * 8 / 7 }, Transform::CenterCrop { height, width }]
            }
            _ => vec![Transform::Resize { height, width }],
        };
        Pipeline::new(fit.into_iter().chain(self.to_input()))
    }

    fn to_input(&self) -> [Transform; 2] {
        [Transform::ToRgb, Transform::Normalize(self.normalization())]
    }
}

impl FromStr for DataSource {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let (name, path) = text.split_once(':').unwrap_or((text, ""));
        let path_of = |name: &str| match path {
            "" => Err(DataError::MissingPath { name: name.into() }),
            path => Ok(PathBuf::from(path)),
        };
        match name {
            "digits" if name == text => Ok(DataSource::Digits),
            "cifar10" => Ok(DataSource::Cifar(Cifar::Cifar10, path_of(name)?)),
            "cifar100" => Ok(DataSource::Cifar(Cifar::Cifar100, path_of(name)?)),
            "folder" => Ok(DataSource::Folder(path_of(name)?)),
            _ => Err(DataError::UnknownSource { given: text.into() }),
        }
    }
}

impl TryFrom<String> for DataSource {
    type Error = DataError;

    fn try_from(text: String) -> Result<Self, DataError> {
        text.parse()
    }
}

impl From<DataSource> for String {
    fn from(source: DataSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataSource::Digits => f.write_str("digits"),
            DataSource::Cifar(Cifar::Cifar10, path) => write!(f, "cifar10:{}", path.display()),
            DataSource::Cifar(Cifar::Cifar100, path) => write!(f, "cifar100:{}", path.display()),
            DataSource::Folder(path) => write!(f, "folder:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, SampleKey, Scratch};

    fn transformed(pipeline: &Pipeline, image: &Image) -> ([usize; 3], Vec<f32>) {
        let (key, mut out) = (SampleKey { seed: 1, epoch: 0, index: 0 }, Vec::new());
        pipeline.validate().unwrap();
        let shape = pipeline.apply(image, key, &mut Scratch::default(), &mut out).unwrap();
        (shape, out)
    }

    #[test]
    fn every_source_is_brought_to_square_rgb_for_training_and_evaluation() {
        for text in ["digits", "cifar10:x", "cifar100:x", "folder:x"] {
            let source: DataSource = text.parse().unwrap();
            for (channels, height, width) in [(1, 8, 8), (3, 32, 32), (3, 75, 40)] {
                let pixels = vec![9; channels * height * width];
                let image = Image { pixels, channels, height, width, label: 0 };
                for size in [8, 32, 65] {
                    for pipeline in [source.train_transforms(size), source.eval_transforms(size)] {
                        assert_eq!(transformed(&pipeline, &image).0, [3, size, size], "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn normalised_training_digits_have_mean_zero_and_spread_one() {
        let data = DataSource::Digits.load(Split::Train).unwrap();
        let pipeline = DataSource::Digits.eval_transforms(8);
        let values: Vec<f64> = (0..data.len())
            .flat_map(|index| transformed(&pipeline, &data.get(index).unwrap()).1)
            .map(f64::from)
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 1e-3 && (variance.sqrt() - 1.0).abs() < 1e-3, "{mean} {variance}");
    }

    #[test]
    fn every_form_is_parsed_and_printed_back() {
        for text in ["digits", "cifar10:/data/c10", "cifar100:c100", "folder:/a:b/c"] {
            assert_eq!(text.parse::<DataSource>().unwrap().to_string(), text);
        }
        let json = serde_json::to_string(&DataSource::Folder("/x".into())).unwrap();
        assert_eq!(json, r#""folder:/x""#);
        assert_eq!(serde_json::from_str::<DataSource>(&json).unwrap(), DataSource::Folder("/x".into()));
        assert_eq!("folder:/a:b".parse::<DataSource>().unwrap(), DataSource::Folder("/a:b".into()));
    }

    #[test]
    fn an_unknown_form_is_answered_with_the_accepted_ones() {
        for text in ["mnist", "", "digits:", "digits:/x", "CIFAR10:/x"] {
            assert_eq!(
                text.parse::<DataSource>().unwrap_err().to_string(),
                format!(
                    "unknown data source `{text}`: use one of digits, cifar10:PATH, cifar100:PATH, folder:PATH"
                )
            );
        }
        for text in ["cifar10", "cifar10:"] {
            assert_eq!(
                text.parse::<DataSource>().unwrap_err().to_string(),
                "data source `cifar10` needs a folder: write cifar10:PATH"
            );
        }
    }
}
