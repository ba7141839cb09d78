//! Weights that a run begins with.

use std::path::Path;

use burn::store::PathFilter;
use burn_nccl_models::ResNet;
use burn_nccl_records::{Error, LoadOptions, LoadReport, OpenOptions, Source, load_source};

use crate::error::{RecipeError, Result};
use crate::warning::warn_once;

/// The classifier, the one layer whose shape depends on the number of classes.
const CLASSIFIER: &str = "fc.";

/// `model` with the weights of a file, and with its own classifier where the file's is for another number of classes.
///
/// # Errors
/// Where the file cannot be read, or holds another model.
pub(crate) fn pretrained(model: &ResNet, file: &Path) -> Result<ResNet> {
    let refused = |error| RecipeError::records(format!("cannot begin with {}", file.display()), error);
    let source = Source::open(file, &OpenOptions::default()).map_err(refused)?;
    let strict = LoadOptions::default();
    let (model, _) = match load_source(model, &source, &strict) {
        Err(Error::Mismatch { report, .. }) if has_other_classes(&report) => {
            warn_once(&format!("{} is for other classes: its classifier is left out", file.display()));
            let backbone = PathFilter::new().with_predicate(|path, _| !path.starts_with(CLASSIFIER));
            load_source(model, &source, &strict.with_only(backbone))
        }
        loaded => loaded,
    }
    .map_err(refused)?;
    Ok(model)
}

/// Whether all that does not fit is the shape of the classifier.
fn has_other_classes(report: &LoadReport) -> bool {
    report.missing.is_empty()
        && report.unexpected.is_empty()
        && report.mistyped.is_empty()
        && report.misshapen.iter().all(|misshapen| misshapen.name.starts_with(CLASSIFIER))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::module::Module;
    use burn::tensor::Device;
    use burn_nccl_models::{Depth, ResNetConfig, Stem};
    use burn_nccl_records::{SaveOptions, save};

    use super::*;
    use crate::parameters::parameters_sha256;

    fn model(depth: Depth, classes: usize) -> ResNet {
        ResNetConfig::new(depth, classes).with_stem(Stem::Cifar).init(&Device::flex()).materialize()
    }

    #[test]
    fn weights_for_the_same_classes_are_all_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weights");
        let saved = model(Depth::ResNet18, 10);
        save(&saved, &file, &SaveOptions::default()).unwrap();
        let loaded = pretrained(&model(Depth::ResNet18, 10), &file).unwrap();
        assert_eq!(parameters_sha256(&loaded), parameters_sha256(&saved));
    }

    #[test]
    fn a_classifier_for_other_classes_is_left_out_and_the_rest_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weights");
        let saved = model(Depth::ResNet18, 7);
        save(&saved, &file, &SaveOptions::default()).unwrap();
        let own = model(Depth::ResNet18, 10);
        let loaded = pretrained(&own, &file).unwrap();
        assert_eq!(parameters_sha256(&loaded.fc), parameters_sha256(&own.fc));
        assert_eq!(parameters_sha256(&loaded.layer4), parameters_sha256(&saved.layer4));
        assert_eq!(parameters_sha256(&loaded.conv1), parameters_sha256(&saved.conv1));
    }

    #[test]
    fn another_network_is_refused_with_what_does_not_fit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weights");
        save(&model(Depth::ResNet34, 10), &file, &SaveOptions::default()).unwrap();
        let error = pretrained(&model(Depth::ResNet18, 10), &file).unwrap_err();
        assert!(error.cause.contains("not in the model") && error.cause.contains("layer1.2"), "{error}");
        assert!(!error.lines().contains("LoadOptions"), "{error}");
    }
}
