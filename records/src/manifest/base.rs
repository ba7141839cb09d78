use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Verification;
use super::files::{check_names, digest, open, tensors};
use super::verification::{compare, is_lfs_pointer};
use crate::atomic;
use crate::error::{Error, Result};
use crate::sha256::hex;

/// A manifest that is larger is not read: JSON takes up to twenty times its size in memory.
const MAX_BYTES: u64 = 16 << 20;

/// What a folder of files must hold: their sizes and SHA-256, and what a reader wants to know without opening them.
///
/// On disk it is `manifest.json`. Names are relative to its folder, with `/` between their parts.
///
/// ```
/// use burn_nccl_records::Manifest;
///
/// # fn main() -> Result<(), burn_nccl_records::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// # std::fs::write(folder.join("notes.txt"), "seen").unwrap();
/// let manifest = Manifest::describe(folder, &["notes.txt"])?;
/// manifest.write(folder)?;
/// # std::fs::write(folder.join("notes.txt"), "seem").unwrap();
///
/// let found = Manifest::read(folder)?.verify(folder);
/// assert!(!found.is_intact());
/// assert_eq!(found.to_string(), "notes.txt: altered, its SHA-256 is another");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The files, in the order they were given.
    pub files: Vec<ManifestFile>,
    /// The tensors of those files that hold weights.
    #[serde(default)]
    pub tensors: Vec<ManifestTensor>,
    /// By what it was written: `burn-nccl-records`, `burn` and `manifest`, the version of this layout.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// What the caller wants kept, such as an accuracy.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Seconds since 1970 in UTC.
    #[serde(default)]
    pub created: u64,
}

/// A file of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Relative to the folder of the manifest.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

impl ManifestFile {
    /// Whether these are the file's bytes, by size and SHA-256: for who has read it, and must not find another one when it is
    /// read again.
    pub fn describes(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.bytes && hex(Sha256::new().chain_update(bytes)) == self.sha256
    }
}

/// A tensor in a file of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTensor {
    /// The [name](ManifestFile::name) of the file that holds it.
    pub file: String,
    /// Its name in the file.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// The type of its values, such as `f32`.
    pub dtype: String,
}

impl Manifest {
    /// The name of a manifest in its folder.
    pub const FILE_NAME: &'static str = "manifest.json";

    /// Describes files of `folder`: each is read once, and of those that hold weights the tensors are listed too.
    ///
    /// # Errors
    ///
    /// [`Error::Manifest`] for a name that is absolute, leaves the folder, appears twice, is a link or a file that Git LFS
    /// has not fetched, [`Error::File`]
    /// for a file that cannot be read, and those of [`Source::open`](crate::Source::open) for damaged weights.
    pub fn describe(folder: impl AsRef<Path>, names: &[impl AsRef<str>]) -> Result<Self> {
        let folder = folder.as_ref();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let invalid = |why| Error::Manifest { path: folder.join(Self::FILE_NAME), why };
        check_names(names.iter().copied()).map_err(invalid)?;
        let describe = |name: &&str| {
            let file = open(folder, name).map_err(|refusal| refusal.into_error(folder, name))?;
            if is_lfs_pointer(&file) {
                // Once the file itself is there, it would count as altered.
                return Err(invalid(format!("`{name}` is a Git LFS pointer: run `git lfs pull` first")));
            }
            let (bytes, sha256) = digest(file).map_err(Error::file("read", folder.join(name)))?;
            Ok(ManifestFile { name: (*name).into(), bytes, sha256 })
        };
        Ok(Self {
            // One after the other: a training beside may need the other processors.
            files: names.iter().map(describe).collect::<Result<_>>()?,
            versions: versions(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            tensors: names.iter().map(|name| tensors(folder, name)).collect::<Result<Vec<_>>>()?.concat(),
            ..Self::default()
        })
    }

    /// Sets [`metrics`](Self::metrics).
    pub fn with_metrics(mut self, metrics: Map<String, Value>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Writes `manifest.json` to `folder`, in one step and durably.
    ///
    /// # Errors
    ///
    /// [`Error::File`] with the old manifest in place; [`Error::Limit`] for one that [`read`](Self::read) would refuse.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<()> {
        let json = self.to_json();
        let size = json.len() as u64;
        if size > MAX_BYTES {
            let what = "the manifest".into();
            return Err(Error::Limit { what, size, limit: MAX_BYTES, format: "manifests" });
        }
        atomic::write_file(folder.as_ref().join(Self::FILE_NAME), json, true, true)
    }

    /// A line for each file and tensor, which people and version control compare by lines.
    fn to_json(&self) -> String {
        fn line(value: &impl Serialize) -> String {
            serde_json::to_string(value).expect("plain data with text for keys is JSON")
        }
        fn lines(values: &[impl Serialize]) -> String {
            values.iter().map(line).collect::<Vec<_>>().join(",\n  ")
        }
        format!(
            "{{\n\"files\": [\n  {}\n],\n\"tensors\": [\n  {}\n],\n\"versions\": {},\n\"metrics\": {},\n\"created\": {}\n}}\n",
            lines(&self.files),
            lines(&self.tensors),
            line(&self.versions),
            line(&self.metrics),
            self.created
        )
    }

    /// Reads `manifest.json` of `folder`. Trusts nothing in it: a name that leaves the folder is refused here.
    ///
    /// # Errors
    ///
    /// [`Error::File`] where there is none, [`Error::Manifest`] where it is not valid.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join(Self::FILE_NAME);
        let file =
            open(folder, Self::FILE_NAME).map_err(|refusal| refusal.into_error(folder, Self::FILE_NAME))?;
        let mut json = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut json).map_err(Error::file("read", &path))?;
        let invalid = |why: String| Error::Manifest { path: path.clone(), why };
        if json.len() as u64 > MAX_BYTES {
            return Err(invalid(format!("it is larger than {} MiB", MAX_BYTES >> 20)));
        }
        let manifest: Self = serde_json::from_slice(&json).map_err(|error| invalid(error.to_string()))?;
        check_names(manifest.files.iter().map(|file| file.name.as_str())).map_err(invalid)?;
        Ok(manifest)
    }

    /// Compares the files of `folder` with this manifest. Reads only those of the right size.
    pub fn verify(&self, folder: impl AsRef<Path>) -> Verification {
        let folder = folder.as_ref();
        let check = |file: &ManifestFile| Some((file.name.clone(), compare(folder, file)?));
        Verification { faults: self.files.par_iter().filter_map(check).collect() }
    }
}

/// The version of Burn that this crate is pinned to.
pub const BURN_VERSION: &str = "0.22.1";

fn versions() -> BTreeMap<String, String> {
    let version = |name: &str, version: &str| (name.into(), version.into());
    BTreeMap::from([
        version("burn-nccl-records", env!("CARGO_PKG_VERSION")),
        version("burn", BURN_VERSION),
        version("manifest", "1"),
    ])
}
