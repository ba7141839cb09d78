//! Which network a file of weights belongs to: what translates between PyTorch's names and Burn's.

use std::path::Path;
use std::str::FromStr;

use burn_nccl_models::{Depth, NormConfig, ResNetConfig, Stem};
use burn_nccl_records::{Architecture, Error, Source};
use clap::Args;
use recipe_common::{RecipeError, Result};
use serde_json::Value;

/// What a run writes beside its weights.
const RUN_CONFIG: &str = "config.json";
/// Height and width of the ImageNet stem's kernel.
const IMAGENET_KERNEL: usize = 7;

/// The network, where the file does not tell.
#[derive(Args)]
pub(crate) struct NetworkOptions {
    /// The network, such as resnet50: needed to translate names, unless the file or its run folder tells.
    #[arg(long)]
    model: Option<Depth>,
    /// Number of classes; the classifier's outputs in the file, unless given.
    #[arg(long, requires = "model")]
    classes: Option<usize>,
    /// The first layers, imagenet or cifar; told by the shape of the first convolution, unless given.
    #[arg(long, requires = "model")]
    stem: Option<Stem>,
}

/// The network of `source`, opened from `path`: as the options say, else as the file says, else, where names must be
/// translated, as the run folder says that it lies in. (Not everything in there is a network: a copy asks for none.)
///
/// # Errors
/// For a description that cannot be used. None at all is no error.
pub(crate) fn find(
    options: &NetworkOptions,
    source: &Source,
    path: &Path,
    translates: bool,
) -> Result<Option<ResNetConfig>> {
    match options.model {
        Some(depth) => given(options, depth, source, path).map(Some),
        None => Ok(described(source, path)?.or_else(|| translates.then(|| of_run(source, path)).flatten())),
    }
}

/// The network that the options describe, with sizes from the file where they give none.
fn given(options: &NetworkOptions, depth: Depth, source: &Source, path: &Path) -> Result<ResNetConfig> {
    let refused = |why, remedy: &str| {
        RecipeError::usage(format!("cannot build {depth} for {}", path.display()), why, remedy)
    };
    let stem = options.stem.or_else(|| stem(source));
    let config = config(depth, options.classes.or_else(|| classes(source)), stem).map_err(|missing| {
        let why = format!("it has no tensor `{missing}`, which would tell its size");
        refused(why, "check --model, or give --classes and --stem")
    })?;
    config.check().map_err(|why| refused(why, "check --classes"))?;
    Ok(config)
}

/// The network of a self-describing file.
fn described(source: &Source, path: &Path) -> Result<Option<ResNetConfig>> {
    match source.architecture() {
        Ok(config) => Ok(Some(config)),
        Err(Error::ModelConfig { why, .. }) => Err(RecipeError::failure(
            format!("cannot use the description of the network in {}", path.display()),
            why,
            "give the network with --model",
        )),
        Err(_) => Ok(None),
    }
}

/// The network of the run that wrote the file: a checkpoint's weights lie three folders below the settings.
fn of_run(source: &Source, path: &Path) -> Option<ResNetConfig> {
    let file = path.canonicalize().unwrap_or_else(|_| path.into());
    file.ancestors().take(4).find_map(|folder| {
        let text = std::fs::read_to_string(folder.join(RUN_CONFIG)).ok()?;
        run_config(&serde_json::from_str(&text).ok()?, classes(source))
    })
}

/// The network that a run's settings describe, if they are a run's. They leave the number of classes to the data.
fn run_config(run: &Value, classes: Option<usize>) -> Option<ResNetConfig> {
    let key = |name| run.get(name).and_then(Value::as_str);
    let depth = Depth::from_str(key("model")?).ok()?;
    let stem = Stem::from_str(key("stem")?).ok()?;
    let norm = if key("norm") == Some("sync-batch") { NormConfig::SyncBatch } else { NormConfig::Batch };
    Some(config(depth, classes, Some(stem)).ok()?.with_norm(norm))
}

/// # Errors
/// The tensor that would have told what is missing.
fn config(depth: Depth, classes: Option<usize>, stem: Option<Stem>) -> Result<ResNetConfig, &'static str> {
    let classes = classes.filter(|&classes| classes > 0).ok_or("fc.bias")?;
    Ok(ResNetConfig::new(depth, classes).with_stem(stem.ok_or("conv1.weight")?))
}

fn classes(source: &Source) -> Option<usize> {
    shape(source, "fc.bias").and_then(|shape| shape.first().copied())
}

fn stem(source: &Source) -> Option<Stem> {
    let kernel = shape(source, "conv1.weight").and_then(|shape| shape.last().copied())?;
    Some(if kernel == IMAGENET_KERNEL { Stem::ImageNet } else { Stem::Cifar })
}

/// The shape of the network's tensor `name`, which wrappers may have put a prefix before. The shortest name is meant:
/// blocks have a `conv1.weight` too.
fn shape<'a>(source: &'a Source, name: &str) -> Option<&'a [usize]> {
    let is_meant = |found: &str| {
        found.strip_suffix(name).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    let tensors = source.tensors().iter().filter(|tensor| is_meant(tensor.name()));
    tensors.min_by_key(|tensor| tensor.name().len()).map(|tensor| tensor.shape())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_runs_settings_describe_its_network_and_other_files_of_that_name_none() {
        let run = json!({ "model": "resnet18", "stem": "cifar", "norm": "sync-batch", "epochs": 3 });
        let expected =
            ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).with_norm(NormConfig::SyncBatch);
        assert_eq!(run_config(&run, Some(10)), Some(expected));
        assert_eq!(run_config(&run, None), None);
        assert_eq!(run_config(&json!({ "model_type": "resnet", "depths": [3, 4] }), Some(10)), None);
    }

    #[test]
    fn what_tells_a_missing_size_is_named() {
        assert_eq!(config(Depth::ResNet50, None, Some(Stem::Cifar)), Err("fc.bias"));
        assert_eq!(config(Depth::ResNet50, Some(10), None), Err("conv1.weight"));
    }
}
