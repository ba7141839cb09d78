//! The dataset over a listed folder.

use std::fs;
use std::path::{Path, PathBuf};

use burn::data::dataset::Dataset;

use super::scan::{class_folders, image_files};
use crate::decode::decode_image;
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

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage};

    use super::*;

    /// Writes one-pixel images whose red value is `red`, `red + 1`, ...
    fn write_images(folder: &Path, count: u8, red: u8) {
        fs::create_dir_all(folder).unwrap();
        for i in 0..count {
            let picture = RgbImage::from_pixel(1, 1, Rgb([red + i, 0, 0]));
            picture.save(folder.join(format!("{i:03}.png"))).unwrap();
        }
    }

    fn reds(data: &ImageFolder) -> Vec<(u8, usize)> {
        (0..data.len())
            .map(|index| data.get(index).unwrap())
            .map(|image| (image.pixels[0], image.label))
            .collect()
    }

    #[test]
    fn without_split_folders_each_sixth_image_of_a_class_is_a_test_image() {
        let root = tempfile::tempdir().unwrap();
        write_images(&root.path().join("dog"), 7, 100);
        write_images(&root.path().join("cat"), 12, 0);
        let train = ImageFolder::open(root.path(), Split::Train).unwrap();
        let test = ImageFolder::open(root.path(), Split::Test).unwrap();
        assert_eq!(train.class_names(), ["cat", "dog"]);
        assert_eq!(reds(&test), [(5, 0), (11, 0), (105, 1)]);
        assert_eq!(train.len(), 16);
        assert!(reds(&train).contains(&(106, 1)) && !reds(&train).contains(&(105, 1)));
        assert!(test.path(2).unwrap().ends_with("dog/005.png"));
    }

    #[test]
    fn split_folders_are_used_and_the_training_classes_number_both() {
        let root = tempfile::tempdir().unwrap();
        write_images(&root.path().join("train/a"), 2, 0);
        write_images(&root.path().join("train/b"), 1, 10);
        write_images(&root.path().join("test/b"), 1, 30);
        assert_eq!(reds(&ImageFolder::open(root.path(), Split::Train).unwrap()), [(0, 0), (1, 0), (10, 1)]);
        assert_eq!(reds(&ImageFolder::open(root.path(), Split::Test).unwrap()), [(30, 1)]);
        // ImageNet has an unlabelled test folder beside val.
        write_images(&root.path().join("val/b"), 1, 40);
        assert_eq!(reds(&ImageFolder::open(root.path(), Split::Test).unwrap()), [(40, 1)]);
        write_images(&root.path().join("val/c"), 1, 50);
        let error = ImageFolder::open(root.path(), Split::Test).unwrap_err();
        assert!(matches!(&error, DataError::UnknownClass { class, .. } if class == "c"), "{error}");
    }

    #[test]
    fn what_is_not_an_image_is_ignored_and_folders_in_a_class_belong_to_it() {
        let root = tempfile::tempdir().unwrap();
        write_images(&root.path().join("a"), 1, 0);
        write_images(&root.path().join("a/more"), 1, 5);
        write_images(&root.path().join("b"), 1, 9);
        write_images(&root.path().join(".cache"), 1, 77);
        fs::write(root.path().join("README.md"), "x").unwrap();
        fs::write(root.path().join("a/notes.txt"), "x").unwrap();
        fs::write(root.path().join("a/.hidden.png"), "x").unwrap();
        fs::create_dir(root.path().join("a/folder.png")).unwrap();
        fs::rename(root.path().join("b/000.png"), root.path().join("b/UPPER.PNG")).unwrap();
        let data = ImageFolder::open(root.path(), Split::Train).unwrap();
        assert_eq!(reds(&data), [(0, 0), (5, 0), (9, 1)]);
    }

    #[test]
    fn a_folder_that_cannot_be_used_says_why() {
        let root = tempfile::tempdir().unwrap();
        let open = |path: &Path, split| ImageFolder::open(path, split).unwrap_err();
        let missing = open(&root.path().join("none"), Split::Train).to_string();
        assert!(missing.contains("none") && missing.contains("check that it exists"), "{missing}");
        fs::write(root.path().join("file"), "x").unwrap();
        let file = open(&root.path().join("file"), Split::Train);
        assert!(matches!(file, DataError::NotAFolder { .. }), "{file}");

        let empty = open(root.path(), Split::Train);
        assert!(matches!(empty, DataError::TooFewClasses { found: 0, .. }), "{empty}");
        write_images(&root.path().join("a"), 6, 0);
        let one = open(root.path(), Split::Train).to_string();
        assert!(one.contains("holds 1 class folders, classification needs at least 2"), "{one}");
        fs::create_dir(root.path().join("b")).unwrap();
        let bare = open(root.path(), Split::Train);
        assert!(matches!(&bare, DataError::EmptyClass { path, .. } if path.ends_with("b")), "{bare}");
        write_images(&root.path().join("b"), 5, 0);
        let few = open(root.path(), Split::Test).to_string();
        assert!(few.contains("no images for the test split"), "{few}");

        fs::create_dir(root.path().join("train")).unwrap();
        let no_test = open(root.path(), Split::Test).to_string();
        assert!(no_test.contains("has no `val or test` folder"), "{no_test}");
    }

    #[test]
    fn a_corrupt_image_is_an_error_that_names_it_when_it_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        write_images(&root.path().join("a"), 1, 0);
        write_images(&root.path().join("b"), 1, 0);
        fs::write(root.path().join("b/broken.jpg"), "x").unwrap();
        let data = ImageFolder::open(root.path(), Split::Train).unwrap();
        assert!(data.get(1).is_ok());
        let error = data.get(2).unwrap_err().to_string();
        assert!(error.contains("b/broken.jpg") && error.contains("replace or remove the file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_where_they_cannot_loop() {
        use std::os::unix::fs::symlink;

        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_images(&root.path().join("a"), 1, 0);
        write_images(elsewhere.path(), 2, 20);
        symlink(elsewhere.path(), root.path().join("b")).unwrap();
        symlink(elsewhere.path().join("001.png"), root.path().join("a/link.png")).unwrap();
        symlink(root.path(), root.path().join("a/up")).unwrap();
        symlink(root.path().join("a"), root.path().join("a/self")).unwrap();
        let data = ImageFolder::open(root.path(), Split::Train).unwrap();
        assert_eq!(reds(&data), [(0, 0), (21, 0), (20, 1), (21, 1)]);

        symlink(root.path(), root.path().join("loop")).unwrap();
        let error = ImageFolder::open(root.path(), Split::Train).unwrap_err();
        assert!(matches!(&error, DataError::LinkLoop { path, .. } if path.ends_with("loop")), "{error}");
        fs::remove_file(root.path().join("loop")).unwrap();

        symlink(root.path().join("gone"), root.path().join("a/dangling.png")).unwrap();
        let error = ImageFolder::open(root.path(), Split::Train).unwrap_err();
        assert!(matches!(&error, DataError::Read { path, .. } if path.ends_with("dangling.png")), "{error}");
    }
}
