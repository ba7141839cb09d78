//! The file that a command reads.

use std::num::NonZero;
use std::path::PathBuf;

use burn_nccl_records::{Error, OpenOptions, Source};
use clap::Args;
use recipe_common::{RecipeError, Result};

/// A file of weights, in any format.
#[derive(Args)]
pub(crate) struct Input {
    /// A .pth, .safetensors or .bpk file, a shard index, a checkpoint or a run folder; told by content.
    pub(crate) path: PathBuf,
    /// Key of the weights in a .pth file that holds more than weights, such as `ema.state_dict`; found by itself
    /// where it is a usual one.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Megabytes that the file may expand to, by compression or repeated views; without it, 100 times its size, at least
    /// 1 GiB.
    #[arg(long, value_name = "N")]
    pub(crate) max_expanded_mb: Option<NonZero<u64>>,
}

/// Opens the input; no tensor is read.
pub(crate) fn open(input: &Input) -> Result<Source> {
    Source::open(&input.path, &input.options())
        .map_err(|error| records(format!("cannot read {}", input.path.display()), &error))
}

impl Input {
    /// How the library opens it.
    pub(crate) fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        options.key = self.key.clone();
        options.max_expanded_bytes =
            self.max_expanded_mb.map(|megabytes| megabytes.get().saturating_mul(1_000_000));
        options
    }
}

/// An error of the library; who runs a recipe has options where a programmer has fields.
pub(crate) fn records(what: impl Into<String>, error: &Error) -> RecipeError {
    if let Error::File { action, path, source } = error {
        let what = format!("cannot {action} {}", path.display());
        let remedy = "check that it exists, is accessible and that the disk has space";
        return RecipeError::failure(what, source.to_string(), remedy);
    }
    let text = [("`OpenOptions::key`", "--key"), ("`OpenOptions::max_expanded_bytes`", "--max-expanded-mb")]
        .iter()
        .fold(error.to_string(), |text, (field, option)| text.replace(field, option));
    RecipeError::from_text(what, &text)
}
