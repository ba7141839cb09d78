//! Where NCCL and the CUDA driver may be.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::rendezvous::named_file;

/// Which files are to be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Libraries {
    /// NCCL, and no other.
    pub(crate) nccl: Option<PathBuf>,
    /// The CUDA driver, and no other.
    pub(crate) driver: Option<PathBuf>,
    /// Below which Python may have installed the wheel of NCCL.
    pub(crate) python: Vec<PathBuf>,
}

impl Libraries {
    /// What the environment names, and the usual places.
    pub(crate) fn from_environment() -> Self {
        let home = named_file("HOME").map(|home| home.join(".local"));
        let python = [named_file("VIRTUAL_ENV"), named_file("CONDA_PREFIX"), home]
            .into_iter()
            .flatten()
            .chain(["/usr/local".into(), "/usr".into()])
            .collect();
        let (nccl, driver) = (named_file("BURN_NCCL_LIBRARY"), named_file("BURN_NCCL_CUDA_LIBRARY"));
        Self { nccl, driver, python }
    }

    /// What is tried for NCCL, in this order, and a note on where nothing is.
    pub(super) fn nccl(&self) -> (Vec<PathBuf>, Vec<String>) {
        if let Some(named) = &self.nccl {
            return (vec![named.clone()], Vec::new());
        }
        let wheels: Vec<PathBuf> = self.python.iter().flat_map(|prefix| wheels(prefix)).collect();
        let notes = match wheels.is_empty() && !self.python.is_empty() {
            true => {
                let prefixes: Vec<String> =
                    self.python.iter().map(|prefix| prefix.display().to_string()).collect();
                vec![format!("the pip package nvidia-nccl-cu12 below {}: not there", prefixes.join(", "))]
            }
            false => Vec::new(),
        };
        let names = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from);
        (names.into_iter().chain(wheels).collect(), notes)
    }

    /// What is tried for the driver.
    pub(crate) fn driver(&self) -> Vec<PathBuf> {
        match &self.driver {
            Some(named) => vec![named.clone()],
            None => ["libcuda.so.1", "libcuda.so"].map(PathBuf::from).into(),
        }
    }
}

/// The wheels of NCCL below one prefix of Python.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let mut pythons: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path())
        .collect();
    pythons.sort();
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)))
        .map(|packages| packages.join("nvidia/nccl/lib/libnccl.so.2"))
        .filter(|wheel| wheel.is_file())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_is_the_only_one_that_is_tried() {
        let named =
            Libraries { nccl: Some("/opt/n.so".into()), driver: Some("/opt/c.so".into()), python: vec![] };
        assert_eq!(named.nccl(), (vec![PathBuf::from("/opt/n.so")], vec![]));
        assert_eq!(named.driver(), [PathBuf::from("/opt/c.so")]);
    }

    #[test]
    fn the_wheel_of_a_virtual_environment_is_found_after_the_systems_library() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
        fs::create_dir_all(&place).unwrap();
        fs::create_dir_all(folder.path().join("lib/python2.7/site-packages/nvidia/nccl/lib")).unwrap();
        let libraries = Libraries { python: vec![folder.path().into()], ..Libraries::default() };
        let (names, notes) = libraries.nccl();
        assert_eq!(names, ["libnccl.so.2", "libnccl.so"].map(PathBuf::from));
        assert!(notes[0].contains(&folder.path().display().to_string()), "{notes:?}");
        fs::write(place.join("libnccl.so.2"), b"").unwrap();
        let expected: Vec<PathBuf> =
            vec!["libnccl.so.2".into(), "libnccl.so".into(), place.join("libnccl.so.2")];
        assert_eq!(libraries.nccl(), (expected, vec![]));
    }
}
