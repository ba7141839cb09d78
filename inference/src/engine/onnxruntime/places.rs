//! Where the library of ONNX Runtime may be.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What a caller or the surroundings say about it.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// `ORT_DYLIB_PATH`.
    pub(super) named: Option<PathBuf>,
    /// The folder of this program.
    pub(super) program: Option<PathBuf>,
    /// The Python environments that are active: `VIRTUAL_ENV` and `CONDA_PREFIX`.
    pub(super) python: Vec<PathBuf>,
}

impl Surroundings {
    /// Reads the variables of the environment.
    pub(super) fn here() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let program = std::env::current_exe().ok();
        Self {
            named: path("ORT_DYLIB_PATH"),
            program: program.and_then(|program| program.parent().map(Path::to_owned)),
            python: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect(),
        }
    }
}

/// The files to try, in order, and the folders that have none.
///
/// A place that is named is the only one: another version than the one that was asked for would be a surprise.
pub(super) fn places(named: Option<&Path>, here: &Surroundings) -> (Vec<PathBuf>, Vec<PathBuf>) {
    if let Some(named) = named.or(here.named.as_deref()) {
        // A relative path would be taken from the folder of the program.
        let named = std::path::absolute(named).unwrap_or_else(|_| named.to_owned());
        if !named.is_dir() {
            return (vec![named], Vec::new());
        }
        let folders = within(&named);
        let files: Vec<_> = folders.iter().filter_map(|folder| newest(folder)).collect();
        return (files, folders);
    }
    let mut folders: Vec<_> =
        here.program.iter().flat_map(|program| [program.clone(), program.join("lib")]).collect();
    folders.extend(["/usr/local/lib", "/usr/lib"].map(PathBuf::from));
    folders.push(Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH)));
    folders.extend(here.python.iter().flat_map(|environment| within(environment)));
    let files = folders.iter().filter_map(|folder| newest(folder));
    // Names without a folder are looked up by the loader, in LD_LIBRARY_PATH and its cache.
    let names =
        [format!("{DLL_PREFIX}onnxruntime{DLL_SUFFIX}"), format!("{DLL_PREFIX}onnxruntime{DLL_SUFFIX}.1")];
    let files = files.chain(names.into_iter().map(PathBuf::from)).collect();
    (files, folders)
}

/// The folders of an installation that may have the library: those of the release archive, of the Python package, and of
/// a Python environment with it.
fn within(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    folders.extend(["lib", "capi", "onnxruntime/capi"].map(|folder| root.join(folder)));
    for lib in ["lib", "lib64"] {
        let pythons = sorted(&root.join(lib)).into_iter().filter(|path| starts_with(path, "python"));
        folders.extend(pythons.map(|python| python.join("site-packages/onnxruntime/capi")));
    }
    folders
}

/// The library of a folder: the one without a version, which is a link to the one to take, else the last by name.
fn newest(folder: &Path) -> Option<PathBuf> {
    let plain = folder.join(format!("{DLL_PREFIX}onnxruntime{DLL_SUFFIX}"));
    if plain.is_file() {
        return Some(plain);
    }
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        // The libraries of execution providers are called libonnxruntime_providers_...
        name.starts_with(&format!("{DLL_PREFIX}onnxruntime.")) && name.contains(DLL_SUFFIX)
    };
    sorted(folder).into_iter().filter(|path| path.is_file()).rfind(is_library)
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn starts_with(path: &Path, start: &str) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        folder
    }

    #[test]
    fn a_file_that_is_named_is_the_only_place() {
        let here = Surroundings { named: Some("/elsewhere".into()), ..Default::default() };
        assert_eq!(places(Some(Path::new("/a/b.so")), &here).0, [PathBuf::from("/a/b.so")]);
        assert_eq!(places(None, &here).0, [PathBuf::from("/elsewhere")]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_folder_that_is_named_is_searched_as_an_archive_a_package_and_an_environment() {
        for file in [
            "libonnxruntime.so.1.20.0",
            "lib/libonnxruntime.so",
            "capi/libonnxruntime.so.1.32.0",
            "onnxruntime/capi/libonnxruntime.so.1.32.0",
            "lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.32.0",
        ] {
            let root = folder(&[file, "libonnxruntime_providers_shared.so"]);
            assert_eq!(places(Some(root.path()), &Surroundings::default()).0, [root.path().join(file)]);
        }
        let empty = folder(&["other.so"]);
        let (files, folders) = places(Some(empty.path()), &Surroundings::default());
        assert!(files.is_empty());
        assert_eq!(folders[..2], [empty.path().to_owned(), empty.path().join("lib")]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn of_several_libraries_the_link_is_taken_and_else_the_last() {
        let linked = folder(&["libonnxruntime.so", "libonnxruntime.so.1.32.0"]);
        assert_eq!(newest(linked.path()), Some(linked.path().join("libonnxruntime.so")));
        let versions = folder(&["libonnxruntime.so.1.20.0", "libonnxruntime.so.1.32.0"]);
        assert_eq!(newest(versions.path()), Some(versions.path().join("libonnxruntime.so.1.32.0")));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn without_a_name_an_active_environment_comes_before_the_loader() {
        let file = "lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime.so.1.30.0";
        let environment = folder(&[file]);
        let here = Surroundings { python: vec![environment.path().to_owned()], ..Default::default() };
        let (files, _) = places(None, &here);
        let place = files.iter().position(|path| *path == environment.path().join(file)).unwrap();
        assert_eq!(
            files[place + 1..],
            [PathBuf::from("libonnxruntime.so"), PathBuf::from("libonnxruntime.so.1")]
        );
    }
}
