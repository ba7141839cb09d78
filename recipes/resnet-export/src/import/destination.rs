//! Where code and weights go: both or none.

use std::fs::{self, Permissions};
use std::io::{Error, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use recipe_common::{RecipeError, Result};
use tempfile::{NamedTempFile, TempPath};

use super::convert::Generated;

/// Two files in a folder.
pub(super) struct Destination {
    folder: PathBuf,
    pub(super) code: PathBuf,
    pub(super) weights: PathBuf,
    overwrite: bool,
}

impl Destination {
    /// The files of module `name`, where they may be written.
    pub(super) fn new(folder: &Path, name: &str, overwrite: bool) -> Result<Self> {
        let file = |extension| folder.join(name).with_extension(extension);
        let destination = Self { folder: folder.into(), code: file("rs"), weights: file("bpk"), overwrite };
        for file in [&destination.code, &destination.weights] {
            destination.check(file)?;
        }
        Ok(destination)
    }

    fn check(&self, file: &Path) -> Result<()> {
        let refused = |cause, remedy| {
            Err(RecipeError::usage(format!("cannot write {}", file.display()), cause, remedy))
        };
        match fs::symlink_metadata(file) {
            Ok(found) if found.is_dir() => refused("it is a folder", "choose another --name or --to"),
            Ok(_) if !self.overwrite => {
                refused("it exists", "choose another --name or --to, or replace it with --overwrite")
            }
            _ if self.folder.exists() && !self.folder.is_dir() => {
                refused("--to is a file", "give a folder to --to")
            }
            _ => Ok(()),
        }
    }

    /// Writes both files: what can fail is done before the first one gets its name.
    pub(super) fn write(&self, generated: &Generated) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: Error| RecipeError::file("write", &path, error)
        };
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let weights = self.scratch(&generated.weights).map_err(failed(&self.weights))?;
        let code = self.scratch(generated.code.as_bytes()).map_err(failed(&self.code))?;
        self.publish(weights, &self.weights).map_err(failed(&self.weights))?;
        self.publish(code, &self.code).map_err(|error| {
            if !self.overwrite {
                // Without its code it is of no use to anyone.
                let _ = fs::remove_file(&self.weights);
            }
            failed(&self.code)(error)
        })
    }

    /// A file in the folder under a name of its own, removed unless it is published.
    fn scratch(&self, bytes: &[u8]) -> std::io::Result<TempPath> {
        // Less what the umask takes, as other new files; a temporary one would be the owner's alone.
        let permissions = Permissions::from_mode(0o666);
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".import-").suffix(".tmp").permissions(permissions);
        let mut file: NamedTempFile = builder.tempfile_in(&self.folder)?;
        file.write_all(bytes)?;
        Ok(file.into_temp_path())
    }

    fn publish(&self, scratch: TempPath, file: &Path) -> std::io::Result<()> {
        let published = if self.overwrite { scratch.persist(file) } else { scratch.persist_noclobber(file) };
        published.map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated() -> Generated {
        Generated { code: "code".into(), weights: b"weights".to_vec() }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn both_files_are_written_and_existing_ones_are_kept_unless_they_may_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("a/b");
        Destination::new(&to, "net", false).unwrap().write(&generated()).unwrap();
        assert_eq!(names(&to), ["net.bpk", "net.rs"]);
        assert_eq!(fs::read(to.join("net.bpk")).unwrap(), b"weights");

        let refused = Destination::new(&to, "net", false).err().unwrap();
        assert_eq!((refused.exit_code(), refused.cause.as_str()), (2, "it exists"));
        fs::remove_file(to.join("net.rs")).unwrap();
        assert!(Destination::new(&to, "net", false).is_err(), "the weights are still there");
        fs::write(to.join("net.rs"), "old").unwrap();
        Destination::new(&to, "net", true).unwrap().write(&generated()).unwrap();
        assert_eq!(fs::read_to_string(to.join("net.rs")).unwrap(), "code");
        assert_eq!(names(&to), ["net.bpk", "net.rs"]);
    }

    #[test]
    fn what_came_between_is_kept_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let destination = Destination::new(folder.path(), "net", false).unwrap();
        fs::write(folder.path().join("net.rs"), "theirs").unwrap();
        assert!(destination.write(&generated()).is_err());
        assert_eq!(fs::read_to_string(folder.path().join("net.rs")).unwrap(), "theirs");
        assert_eq!(names(folder.path()), ["net.rs"]);
    }

    #[test]
    fn a_file_in_place_of_a_folder_and_a_folder_in_place_of_a_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(Destination::new(&file, "net", true).err().unwrap().cause, "--to is a file");
        fs::create_dir(folder.path().join("net.rs")).unwrap();
        assert_eq!(Destination::new(folder.path(), "net", true).err().unwrap().cause, "it is a folder");
    }
}
