//! The dataset over a listed folder.

use std::fs;
use std::path::{Path, PathBuf};

use burn::data::dataset::Dataset;

use super::decode::decode_image;
use super::scan::{class_folders, image_files};
use crate::{DataError, Image, ImageDataset, Split};

/// JPEG and PNG files, one folder per class; an image is decoded each time it is asked for, as RGB.
///
/// - The class folders' names in sorted order are the classes 0, 1, ...; folders within a class folder
///   belong to the class.
/// - With a `train` folder, the training images are under `train/CLASS/` and the test images under
///   `val/CLASS/`, or `test/CLASS/` where there is no `val`. Classes are those of `train`.
/// - Without one, each sixth image of a class, in sorted order (position % 6 == 5), is a test image.
/// - Files that are not called `.jpg`, `.jpeg` or `.png` (in any case), and hidden ones, are ignored.
///   What is so called must be readable and decodable, or it is an error that names it.
/// - Class folders and files may be links; links to folders inside of a class folder are not followed.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    files: Vec<(PathBuf, usize)>,
    class_names: Vec<String>,
}

impl ImageFolder {
    /// Lists a split of the folder; no image is opened yet.
    ///
    /// # Errors
    ///
    /// [`DataError::NotAFolder`], [`DataError::Read`], [`DataError::MissingSplit`],
    /// [`DataError::TooFewClasses`], [`DataError::EmptyClass`], [`DataError::UnknownClass`] and
    /// [`DataError::LinkLoop`], each with the path.
    pub fn open(root: &Path, split: Split) -> Result<Self, DataError> {
        let metadata = fs::metadata(root).map_err(|source| DataError::Read { path: root.into(), source })?;
        if !metadata.is_dir() {
            return Err(DataError::NotAFolder { path: root.into() });
        }
        let split_folder = |name: &str| Some(root.join(name)).filter(|path| path.is_dir());
        let held_back = split_folder("val").or_else(|| split_folder("test"));
        match (split_folder("train"), held_back, split) {
            (None, None, _) => Self::list(root, root, split, |position| split.takes(position)),
            (None, Some(_), _) => Err(DataError::MissingSplit { root: root.into(), wanted: "train" }),
            (Some(train), _, Split::Train) => Self::list(&train, &train, split, |_| true),
            (Some(train), Some(test), Split::Test) => Self::list(&train, &test, split, |_| true),
            (Some(_), None, Split::Test) => {
                Err(DataError::MissingSplit { root: root.into(), wanted: "val or test" })
            }
        }
    }

    /// Lists the images under `folder` that `takes` accepts by their position in their class; the
    /// classes are those of `classes`.
    fn list(
        classes: &Path,
        folder: &Path,
        split: Split,
        takes: impl Fn(usize) -> bool,
    ) -> Result<Self, DataError> {
        let class_names: Vec<String> = class_folders(classes)?.into_iter().map(|(name, _)| name).collect();
        if class_names.len() < 2 {
            return Err(DataError::TooFewClasses { root: classes.into(), found: class_names.len() });
        }
        let mut files = Vec::new();
        for (class, path) in class_folders(folder)? {
            let label = class_names
                .binary_search(&class)
                .map_err(|_| DataError::UnknownClass { root: folder.into(), class })?;
            let before = files.len();
            let images = image_files(&path)?.into_iter().enumerate();
            files.extend(images.filter(|(position, _)| takes(*position)).map(|(_, file)| (file, label)));
            if files.len() == before {
                return Err(DataError::EmptyClass { path, split: split.name() });
            }
        }
        if files.is_empty() {
            return Err(DataError::TooFewClasses { root: folder.into(), found: 0 });
        }
        Ok(Self { files, class_names })
    }

    /// The file of the image at `index`, or `None` past the end.
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|(path, _)| path.as_path())
    }
}

impl Dataset<Image, DataError> for ImageFolder {
    fn get(&self, index: usize) -> Result<Image, DataError> {
        let (path, label) = &self.files[index];
        decode_image(path, *label)
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

impl ImageDataset for ImageFolder {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }
}
