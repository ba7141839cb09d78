//! `lfs`: keeps weights out of Git's own storage.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use burn_nccl_records::write_file;
use clap::Args;
use recipe_common::{RecipeError, Result};

use crate::source::records;
use recipe_common::output::print;

const FILE: &str = ".gitattributes";
/// Files of weights; manifests and shard indexes are short texts, whose differences Git shows.
const PATTERNS: [&str; 5] = ["*.bpk", "*.safetensors", "*.pth", "*.pt", "*.zst"];
/// What `git lfs track` writes behind a pattern.
const ATTRIBUTES: &str = "filter=lfs diff=lfs merge=lfs -text";

/// Keep files of weights under Git LFS: adds the patterns that FOLDER/.gitattributes lacks.
#[derive(Args)]
pub(crate) struct Options {
    /// The repository, or a folder in it.
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Print the lines and change nothing.
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.print {
        return print(&with_patterns("").0);
    }
    if !options.folder.is_dir() {
        return Err(RecipeError::usage(
            format!("cannot write {}", options.folder.join(FILE).display()),
            "there is no such folder",
            "give a folder of a Git repository, or --print to see the lines",
        ));
    }
    let path = options.folder.join(FILE);
    let old = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(RecipeError::file("read", &path, error)),
    };
    let (new, added) = with_patterns(&old);
    if added.is_empty() {
        return print(&format!("{} has them all\n", path.display()));
    }
    write_file(&path, &new, true, true)
        .map_err(|error| records(format!("cannot write {}", path.display()), &error))?;
    print(&format!(
        "added {} to {}\nnext: git lfs install (once per machine), git add {FILE}\n",
        added.join(", "),
        path.display()
    ))
}

/// `text` with a line for each pattern that it does not give to LFS yet, and those patterns.
///
/// Lines are added at the end, where they win over an earlier line for the same files.
fn with_patterns(text: &str) -> (String, Vec<&'static str>) {
    let is_tracked = |pattern: &str| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(pattern) && words.any(|word| word == "filter=lfs")
        })
    };
    let added: Vec<_> = PATTERNS.into_iter().filter(|pattern| !is_tracked(pattern)).collect();
    let mut text = text.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.extend(added.iter().map(|pattern| format!("{pattern} {ATTRIBUTES}\n")));
    (text, added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_only_missing_patterns_are_added() {
        let old = "*.png binary\n*.bpk filter=lfs diff=lfs merge=lfs -text\n*.pt text";
        let (new, added) = with_patterns(old);
        assert_eq!(added, ["*.safetensors", "*.pth", "*.pt", "*.zst"]);
        assert!(new.starts_with(&format!("{old}\n*.safetensors filter=lfs")), "{new}");
        assert_eq!(with_patterns(&new), (new.clone(), vec![]));
    }
}
