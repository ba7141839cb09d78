use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::atomic;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::source::{OpenOptions, Source, StoredTensor};

/// A manifest that is larger is not read: JSON takes up to twenty times its size in memory.
const MAX_BYTES: u64 = 16 << 20;

/// What is read of a file at a time.
const READ_BYTES: usize = 1 << 20;

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
    /// [`Error::Manifest`] for a name that is absolute, leaves the folder, appears twice or is a link, and
    /// [`Error::File`] for a file that cannot be read.
    pub fn describe(folder: impl AsRef<Path>, names: &[impl AsRef<str>]) -> Result<Self> {
        let folder = folder.as_ref();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let invalid = |why| Error::Manifest { path: folder.join(Self::FILE_NAME), why };
        check_names(names.iter().copied()).map_err(invalid)?;
        let describe = |name: &&str| {
            let file = open(folder, name).map_err(|refusal| refusal.into_error(folder, name))?;
            let (bytes, sha256) = digest(file).map_err(Error::file("read", folder.join(name)))?;
            Ok(ManifestFile { name: (*name).into(), bytes, sha256 })
        };
        Ok(Self {
            // One after the other: a training beside may need the other processors.
            files: names.iter().map(describe).collect::<Result<_>>()?,
            versions: versions(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            tensors: names.iter().flat_map(|name| tensors(folder, name)).collect(),
            ..Self::default()
        })
    }

    /// Replaces [`tensors`](Self::tensors), where the writer of the files knows better which matter.
    pub fn with_tensors(mut self, tensors: Vec<ManifestTensor>) -> Self {
        self.tensors = tensors;
        self
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
        atomic::write(&folder.as_ref().join(Self::FILE_NAME), json.as_bytes(), true, true)
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

/// What [`Manifest::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Verification {
    /// Each file that is not as described, in the order of the manifest.
    pub faults: Vec<(String, Fault)>,
}

impl Verification {
    /// Whether every file is as described.
    pub fn is_intact(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.faults.iter().map(|(name, fault)| format!("{name}: {fault}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// How a file differs from its description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is not there.
    Missing,
    /// It has another size.
    Size {
        /// In the manifest.
        expected: u64,
        /// On the disk.
        found: u64,
    },
    /// Its size is right and its content another.
    Altered,
    /// It cannot be read, or must not be: a link, a folder.
    Unreadable {
        /// The reason.
        why: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Size { expected, found } if found < expected => {
                write!(f, "short, {found} of {expected} bytes")
            }
            Self::Size { expected, found } => write!(f, "too long, {found} bytes in place of {expected}"),
            Self::Altered => f.write_str("altered, its SHA-256 is another"),
            Self::Unreadable { why } => f.write_str(why),
        }
    }
}

/// Why a file of a folder was not opened.
enum Refusal {
    Why(&'static str),
    System(std::io::Error),
}

impl Refusal {
    fn into_error(self, folder: &Path, name: &str) -> Error {
        match self {
            Self::System(source) => Error::File { action: "read", path: folder.join(name), source },
            Self::Why(why) => {
                Error::Manifest { path: folder.join(Manifest::FILE_NAME), why: format!("`{name}` {why}") }
            }
        }
    }
}

/// Opens a file of `folder`, and follows no link on the way there: what is outside the folder stays unread.
fn open(folder: &Path, name: &str) -> Result<File, Refusal> {
    let mut path = PathBuf::from(folder);
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        let kind = fs::symlink_metadata(&path).map_err(Refusal::System)?.file_type();
        match parts.peek() {
            _ if kind.is_symlink() => return Err(Refusal::Why("is a link or lies behind one")),
            Some(_) if !kind.is_dir() => return Err(Refusal::Why("lies in what is no folder")),
            // A pipe would keep its reader waiting for ever.
            None if !kind.is_file() => return Err(Refusal::Why("is not a file")),
            _ => {}
        }
    }
    File::open(&path).map_err(Refusal::System)
}

fn compare(folder: &Path, described: &ManifestFile) -> Option<Fault> {
    let unreadable = |why: String| Some(Fault::Unreadable { why });
    if let Err(why) = check_name(&described.name) {
        return unreadable(why);
    }
    let file = match open(folder, &described.name) {
        Ok(file) => file,
        Err(Refusal::Why(why)) => return unreadable(why.into()),
        Err(Refusal::System(error)) if error.kind() == ErrorKind::NotFound => return Some(Fault::Missing),
        Err(Refusal::System(error)) => return unreadable(format!("cannot be read: {error}")),
    };
    let found = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) => return unreadable(format!("cannot be read: {error}")),
    };
    if found != described.bytes {
        return Some(Fault::Size { expected: described.bytes, found });
    }
    match digest(file) {
        Ok((_, sha256)) => (sha256 != described.sha256).then_some(Fault::Altered),
        Err(error) => unreadable(format!("cannot be read: {error}")),
    }
}

/// Bytes and SHA-256 of a file.
fn digest(mut file: File) -> std::io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((bytes, format!("{:x}", hash.finalize())))
}

/// The tensors of a file, none where it holds no weights.
fn tensors(folder: &Path, name: &str) -> Vec<ManifestTensor> {
    let path = folder.join(name);
    // An index of shards is described by its shards.
    let format = Format::of_file(&path).map(|(format, _)| format);
    let holds_weights = matches!(format, Ok(Format::Burnpack | Format::Safetensors | Format::Pytorch));
    // What looks like weights and is not, as any zip archive does, is a file like others.
    let source = holds_weights.then(|| Source::open(&path, &OpenOptions::default()).ok()).flatten();
    let describe = |tensor: &StoredTensor| ManifestTensor {
        file: name.into(),
        name: tensor.name().into(),
        shape: tensor.shape().to_vec(),
        dtype: tensor.dtype().name().into(),
    };
    source.iter().flat_map(Source::tensors).map(describe).collect()
}

/// Refuses names that are not those of distinct files in the folder.
fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        check_name(name)?;
        if !seen.insert(name) {
            return Err(format!("`{name}` appears twice"));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), String> {
    let mut parts = Path::new(name).components();
    let stays = parts.all(|part| matches!(part, Component::Normal(_)));
    // `a//b` and `a/./b` are other names of `a/b`; `\` is a separator on other systems.
    let plain = name.split('/').all(|part| !part.is_empty() && part != ".") && !name.contains(['\\', '\0']);
    match (stays && plain, name == Manifest::FILE_NAME) {
        (true, false) => Ok(()),
        (true, true) => Err(format!("`{name}` cannot describe itself")),
        (false, _) => Err(format!("`{name}` is not the plain name of a file in its folder")),
    }
}

fn versions() -> BTreeMap<String, String> {
    let version = |name: &str, version: &str| (name.into(), version.into());
    BTreeMap::from([
        version("burn-nccl-records", env!("CARGO_PKG_VERSION")),
        version("burn", burn_version()),
        version("manifest", "1"),
    ])
}

/// The version of Burn that this crate is pinned to.
fn burn_version() -> &'static str {
    "0.22.1"
}
