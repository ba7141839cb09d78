//! What a run's settings say of its network and images.

use std::path::Path;
use std::str::FromStr;

use burn_nccl_datasets::DataSource;
use burn_nccl_models::{Depth, NormConfig, Stem};
use burn_nccl_records::Source;
use burn_nccl_records::checkpoint::Checkpoint;
use serde_json::Value;

/// What a run writes beside its weights.
const CONFIG: &str = "config.json";

/// Settings of a run, as far as they are there. Other programs write files of that name too.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunSettings {
    pub(super) data: Option<DataSource>,
    pub(super) image_size: Option<usize>,
    pub(super) model: Option<Depth>,
    pub(super) stem: Option<Stem>,
    pub(super) norm: NormConfig,
}

impl RunSettings {
    /// The settings of the run that wrote `source`: in its folder, where a checkpoint's weights lie three folders below;
    /// or in the checkpoint, which may have been moved.
    pub(super) fn of(source: &Source) -> Self {
        let Some(file) = source.files().first() else { return Self::default() };
        let file = file.canonicalize().unwrap_or_else(|_| file.clone());
        let beside = file.ancestors().skip(1).take(3).find_map(|folder| {
            let text = std::fs::read_to_string(folder.join(CONFIG)).ok()?;
            Self::from_json(&serde_json::from_str(&text).ok()?)
        });
        beside.or_else(|| Self::of_checkpoint(file.parent()?)).unwrap_or_default()
    }

    fn of_checkpoint(folder: &Path) -> Option<Self> {
        Self::from_json(&Checkpoint::open(folder).ok()?.state().config)
    }

    /// None where it is not a run's.
    fn from_json(config: &Value) -> Option<Self> {
        let text = |key| config.get(key).and_then(Value::as_str);
        Some(Self {
            model: Some(Depth::from_str(text("model")?).ok()?),
            stem: Some(Stem::from_str(text("stem")?).ok()?),
            data: text("data").and_then(|data| DataSource::from_str(data).ok()),
            image_size: config
                .get("image-size")
                .and_then(Value::as_u64)
                .and_then(|size| size.try_into().ok()),
            norm: if text("norm") == Some("sync-batch") { NormConfig::SyncBatch } else { NormConfig::Batch },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_runs_settings_are_read_and_other_files_of_that_name_are_none() {
        let run = json!({ "model": "resnet18", "stem": "cifar", "norm": "sync-batch", "data": "cifar10:/x y",
                          "image-size": 32, "epochs": 3 });
        let expected = RunSettings {
            data: Some("cifar10:/x y".parse().unwrap()),
            image_size: Some(32),
            model: Some(Depth::ResNet18),
            stem: Some(Stem::Cifar),
            norm: NormConfig::SyncBatch,
        };
        assert_eq!(RunSettings::from_json(&run), Some(expected));
        assert_eq!(RunSettings::from_json(&json!({ "model_type": "resnet", "depths": [3, 4] })), None);
    }
}
