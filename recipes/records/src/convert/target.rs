//! What a conversion makes.

use std::num::NonZero;
use std::path::Path;
use std::str::FromStr;

use burn_nccl_records::{Names, SaveDType, SaveFormat, SaveOptions, Zstd};
use clap::{Args, ValueEnum};
use recipe_common::{RecipeError, Result};

/// The format and size of the new file.
#[derive(Args)]
pub(super) struct TargetOptions {
    /// The format; told by the new file's extension, .bpk or .safetensors, unless given. Shards are safetensors.
    #[arg(long = "to", value_name = "FORMAT", value_enum)]
    format: Option<Target>,
    /// Float type of what has two dimensions or more with f16 and bf16, of every float with f32; as it is, unless given.
    #[arg(long, value_enum)]
    pub(super) dtype: Option<Dtype>,
    /// Compress the whole file: zstd, or zstd:LEVEL with a level up to 22.
    #[arg(long, value_name = "zstd[:LEVEL]")]
    compress: Option<Compression>,
    /// Split into safetensors files of at most so many megabytes, with an index, as Hugging Face has them.
    #[arg(long, value_name = "N")]
    shard_mb: Option<NonZero<u64>>,
    /// Replace an existing file.
    #[arg(long)]
    overwrite: bool,
}

/// A format to convert to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Target {
    /// Burn's format with Burn's names
    Bpk,
    /// Safetensors with the names the tensors have
    Safetensors,
    /// Safetensors with torchvision's names and layouts
    Torch,
}

impl Target {
    /// Whose names the tensors of the new file have. Where these are others than those `found`, the way leads through the
    /// network, which knows both names and both layouts.
    pub(super) fn names(self, found: Names) -> Names {
        match self {
            Self::Bpk => Names::Burn,
            Self::Torch => Names::Torch,
            Self::Safetensors => found,
        }
    }
}

/// A float type to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Dtype {
    F32,
    F16,
    Bf16,
}

/// A level of zstd, or its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compression(Option<i32>);

impl TargetOptions {
    /// The format that is asked for, by option or by the extension of `file`.
    pub(super) fn resolve(&self, file: &Path) -> Result<Target> {
        let extension = file.extension().and_then(|extension| extension.to_str());
        match (self.format, extension) {
            (Some(format), _) => Ok(format),
            (None, Some("bpk")) => Ok(Target::Bpk),
            (None, Some("safetensors")) => Ok(Target::Safetensors),
            (None, _) if self.shard_mb.is_some() => Ok(Target::Safetensors),
            _ => Err(RecipeError::usage(
                format!("cannot tell the format of {}", file.display()),
                "its extension is not .bpk or .safetensors",
                "give --to bpk, --to safetensors or --to torch",
            )),
        }
    }

    /// How to save as `target` tensors with these names.
    pub(super) fn save_options(&self, target: Target, names: Names) -> SaveOptions {
        let mut options = SaveOptions::default()
            .with_format(if target == Target::Bpk { SaveFormat::Burnpack } else { SaveFormat::Safetensors })
            .with_names(names)
            .with_overwrite(self.overwrite)
            .with_dtype(match self.dtype {
                None | Some(Dtype::F32) => SaveDType::Keep,
                Some(Dtype::F16) => SaveDType::F16,
                Some(Dtype::Bf16) => SaveDType::BF16,
            });
        if let Some(Compression(level)) = self.compress {
            let default = Zstd::default();
            options = options.with_compression(Zstd { level: level.unwrap_or(default.level), ..default });
        }
        if let Some(megabytes) = self.shard_mb {
            options = options.with_max_shard_bytes(megabytes.get().saturating_mul(1_000_000));
        }
        options
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("`{text}` is no compression: use zstd, or zstd:LEVEL such as zstd:19");
        match text.split_once(':') {
            None if text == "zstd" => Ok(Self(None)),
            Some(("zstd", level)) => level.parse().map(|level| Self(Some(level))).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_is_zstd_with_or_without_a_level() {
        let level = |text| Compression::from_str(text).ok().map(|Compression(level)| level);
        assert_eq!(level("zstd"), Some(None));
        assert_eq!(level("zstd:19"), Some(Some(19)));
        assert_eq!(level("zstd:-3"), Some(Some(-3)));
        for text in ["gzip", "zstd:", "zstd:fast", ""] {
            assert_eq!(level(text), None, "{text}");
        }
    }
}
