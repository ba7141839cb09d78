//! The library, of which a process loads one.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use ort::environment::Environment;
use ort::sys::{ORT_API_VERSION, OrtApiBase};

use super::places::{Surroundings, places};
use crate::{EngineKind, EngineOptions, Error, Result};

const INSTALL: &str = "install it with `pip install onnxruntime` or unpack a release of \
    https://github.com/microsoft/onnxruntime/releases, and name its library or folder \
    (`EngineOptions::with_onnxruntime`, or the variable ORT_DYLIB_PATH)";

/// What was loaded.
#[derive(Clone)]
pub(super) struct Loaded {
    path: PathBuf,
    pub(super) version: String,
    pub(super) environment: Environment,
}

/// The bindings hold one library and one environment for as long as the process lives.
static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

/// The library, loaded at the first call.
pub(super) fn loaded(options: &EngineOptions) -> Result<Loaded> {
    let (files, folders) = places(options.onnxruntime.as_deref(), &Surroundings::here());
    let mut slot = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = slot.as_ref() {
        return match &options.onnxruntime {
            Some(named) if !files.iter().any(|file| same(file, &loaded.path)) => Err(unavailable(format!(
                "this process has loaded {} already and can load no other; start another for {}",
                loaded.path.display(),
                named.display()
            ))),
            _ => Ok(loaded.clone()),
        };
    }
    let mut tried = Vec::new();
    for file in &files {
        match load(file) {
            Ok(loaded) => {
                log::info!("onnxruntime {} from {}", loaded.version, loaded.path.display());
                return Ok(slot.insert(loaded).clone());
            }
            Err(reason) => tried.push(format!("{}: {reason}", file.display())),
        }
    }
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let looked =
        if folders.is_empty() { String::new() } else { format!("looked into {}; ", folders.join(", ")) };
    let tried = if tried.is_empty() { "there is no library".to_owned() } else { tried.join("; ") };
    Err(unavailable(format!("{looked}{tried}; {INSTALL}")))
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { engine: EngineKind::OnnxRuntime, reason }
}

fn same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn load(path: &Path) -> Result<Loaded, String> {
    let version = probe(path)?;
    let builder = ort::init_from(path).map_err(|error| error.to_string())?;
    let environment = builder.with_name("burn-nccl").with_telemetry(false).build();
    let environment = environment.map_err(|error| error.to_string())?;
    Ok(Loaded { path: path.to_owned(), version, environment })
}

/// The version of a library, where the bindings can use it. They panic where a library gives no interface.
fn probe(path: &Path) -> Result<String, String> {
    // SAFETY: what a library does when it is loaded is up to who named it, or installed it in a place for libraries.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // SAFETY: a library that has the symbol has this function under it, as ONNX Runtime's C interface says.
    let base = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase") };
    let base = base.map_err(|_| "it is no library of ONNX Runtime".to_owned())?;
    // SAFETY: the function takes nothing, and what it points to lives as long as the library, which is open here.
    let base = unsafe { base().as_ref() }.ok_or("it gives no interface")?;
    // SAFETY: the version is a string that ends in zero and lives as long as the library.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }.to_string_lossy().into_owned();
    // SAFETY: any number may be asked for; null is the answer where it is too new for the library.
    if unsafe { (base.GetApi)(ORT_API_VERSION) }.is_null() {
        return Err(format!(
            "it is ONNX Runtime {version}, and 1.{ORT_API_VERSION} is the oldest that can be used"
        ));
    }
    // Closing would unload it just before it is loaded again, and its threads do not like that.
    std::mem::forget(library);
    Ok(version)
}
