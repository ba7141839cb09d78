use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::load::{LoadOptions, load_source};
use crate::save::{SaveOptions, SaveReport, save};
use crate::source::Source;

/// The metadata key of [`Architecture::NAME`].
pub(crate) const ARCHITECTURE_KEY: &str = "burn-nccl.architecture";

/// The metadata key of the config, as JSON.
pub(crate) const CONFIG_KEY: &str = "burn-nccl.config";

/// A kind of model that a file can describe: the config from which it is built.
///
/// With it, [`save_model`] writes a file from which [`load_model`] builds the model again, without a config beside it.
pub trait Architecture: Serialize + DeserializeOwned {
    /// What files call this kind of model, such as `resnet`. Never change it: files have it.
    const NAME: &'static str;

    /// The model that the config describes.
    type Model: Module;

    /// Builds the model, with its initial weights.
    fn init(&self, device: &Device) -> Self::Model;

    /// Says why no model can be built from this config, which may come from a damaged or hostile file.
    ///
    /// # Errors
    ///
    /// The reason. The default has none.
    fn check(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// Saves a model together with its config, in one file.
///
/// # Errors
///
/// As [`save`].
pub fn save_model<A: Architecture>(
    config: &A,
    model: &A::Model,
    path: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<SaveReport> {
    save(model, path, &options.clone().with_architecture(config))
}

/// Builds the model that a file of [`save_model`] describes, on `device`, with the weights of the file.
///
/// # Errors
///
/// Those of [`Source::architecture`] and of [`load`](crate::load()).
pub fn load_model<A: Architecture>(path: impl AsRef<Path>, device: &Device) -> Result<(A, A::Model)> {
    let options = LoadOptions::default();
    let source = Source::open(path, &options.open)?;
    let config = source.architecture::<A>()?;
    let (model, _) = load_source(&config.init(device), &source, &options)?;
    Ok((config, model))
}
