//! The network that is measured.

use std::path::{Path, PathBuf};

use recipe_common::Result;
use tempfile::TempDir;

use crate::package::Package;

/// An export: the user's, or one made for the measurement and removed with this value.
pub(super) struct Subject {
    folder: PathBuf,
    description: String,
    _made: Option<TempDir>,
}

impl Subject {
    /// Checks the export in `folder`, or makes one of a ResNet-50 with random weights.
    ///
    /// # Errors
    /// Where the export is not what its manifest says, or none can be made.
    pub(super) fn prepare(folder: Option<&Path>) -> Result<Self> {
        let (folder, made) = match folder {
            Some(folder) => (folder.to_path_buf(), None),
            None => {
                let made = crate::export::sample()?;
                (made.path().join("export"), Some(made))
            }
        };
        let package = Package::open(&folder)?;
        let [channels, height, width] = package.preprocess.input;
        let depth = package.info.architecture["depth"].as_str().unwrap_or("network").to_owned();
        let weights = &package.info.weights;
        let description = format!("{depth}, 1 x {channels} x {height} x {width}, weights in {weights},");
        Ok(Self { folder, description, _made: made })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn describe(&self) -> String {
        self.description.clone()
    }
}
