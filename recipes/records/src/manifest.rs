//! `manifest`: writes down what a folder of weights holds.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use burn_nccl_records::Manifest;
use clap::Args;
use recipe_common::{RecipeError, Result};
use serde_json::{Map, Value};

use crate::source::records;
use recipe_common::output::{print, size};

/// Where a run writes what came out of it.
const SUMMARY: &str = "summary.json";
/// What a manifest keeps of that.
const SUMMARY_KEYS: [&str; 8] = [
    "model",
    "parameters",
    "steps",
    "epochs",
    "train_loss_final",
    "test_accuracy",
    "test_examples",
    "parameters_sha256",
];

/// Write manifest.json: sizes and SHA-256 of files, shapes of their tensors, versions and metrics.
#[derive(Args)]
pub(crate) struct Options {
    /// A folder, all of whose files are described except hidden ones and links; or some files of one folder.
    #[arg(required = true, value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,
    /// A figure to keep, such as top1=0.761; once or more. Those of a run's summary.json are kept without it.
    #[arg(long = "metric", value_name = "NAME=VALUE")]
    metrics: Vec<Metric>,
    /// Replace an existing manifest.
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (folder, names) = files(&options.paths)?;
    let path = folder.join(Manifest::FILE_NAME);
    if path.exists() && !options.overwrite {
        return Err(RecipeError::usage(
            format!("cannot write {}", path.display()),
            "there is a manifest already",
            "check it with recipe-records verify, or replace it with --overwrite",
        ));
    }
    let what = || format!("cannot describe {}", folder.display());
    let mut metrics = summary(&folder, &names);
    metrics.extend(options.metrics.iter().map(|Metric(name, value)| (name.clone(), value.clone())));
    let manifest =
        Manifest::describe(&folder, &names).map_err(|error| records(what(), &error))?.with_metrics(metrics);
    manifest.write(&folder).map_err(|error| records(what(), &error))?;
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    print(&format!(
        "wrote {}: {} files, {}, {} tensors\n",
        path.display(),
        manifest.files.len(),
        size(bytes),
        manifest.tensors.len()
    ))
}

/// The folder that `paths` are, or are files of, and the names in it.
fn files(paths: &[PathBuf]) -> Result<(PathBuf, Vec<String>)> {
    if let [folder] = paths
        && folder.is_dir()
    {
        let mut names = Vec::new();
        list(folder, "", &mut names).map_err(|error| RecipeError::file("read", folder, error))?;
        names.sort();
        return match names.is_empty() {
            false => Ok((folder.clone(), names)),
            true => Err(RecipeError::usage(
                format!("cannot describe {}", folder.display()),
                "it holds no files",
                "give a folder with weights",
            )),
        };
    }
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let folder = parent(&paths[0]);
    let mut names = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str());
        match name.filter(|_| parent(path) == folder && path.is_file()) {
            Some(name) => names.push(name.to_owned()),
            None => {
                return Err(RecipeError::usage(
                    format!("cannot describe {}", path.display()),
                    format!("it is not a file of {}", folder.display()),
                    "give one folder, or files that are in one folder",
                ));
            }
        }
    }
    Ok((folder, names))
}

/// Adds the files below `folder` to `names`, with `prefix` before each.
fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // Left out, it would be missing from the manifest without a word.
        let name = name.to_str().ok_or_else(|| {
            let why = format!("the name of {} is not UTF-8", entry.path().display());
            std::io::Error::new(std::io::ErrorKind::InvalidData, why)
        })?;
        let name = format!("{prefix}{name}");
        if kind.is_dir() {
            list(&entry.path(), &format!("{name}/"), names)?;
        } else if kind.is_file() && name != Manifest::FILE_NAME {
            names.push(name);
        }
    }
    Ok(())
}

/// What the summary of a run says about its weights.
fn summary(folder: &Path, names: &[String]) -> Map<String, Value> {
    let summary =
        names.iter().find(|name| *name == SUMMARY).and_then(|name| fs::read(folder.join(name)).ok());
    let summary: Map<String, Value> =
        summary.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
    summary.into_iter().filter(|(key, _)| SUMMARY_KEYS.contains(&key.as_str())).collect()
}

/// A figure and its name.
#[derive(Clone, Debug, PartialEq)]
struct Metric(String, Value);

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("`{text}` has no name: write NAME=VALUE, such as top1=0.761"))?;
        // A number stays one; `0x10`, `inf` and words are text.
        let number = value.parse().ok().map(Value::Number);
        Ok(Self(name.into(), number.unwrap_or_else(|| value.into())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_metric_is_a_number_where_it_reads_as_one() {
        let metric = |text| Metric::from_str(text).map(|Metric(name, value)| (name, value));
        assert_eq!(metric("top1=0.761"), Ok(("top1".into(), json!(0.761))));
        assert_eq!(metric("steps=300"), Ok(("steps".into(), json!(300))));
        assert_eq!(metric("data=a=b"), Ok(("data".into(), json!("a=b"))));
        assert_eq!(metric("loss=inf"), Ok(("loss".into(), json!("inf"))));
        assert!(metric("0.761").is_err() && metric("=1").is_err());
    }
}
