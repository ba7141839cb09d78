//! What runs a network.

mod native;
mod onnxruntime;
mod tract;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, Onnx, Result, memory};

/// A network that is ready to run.
///
/// It owns its memory and threads, so that one is made per thread that classifies.
pub trait Engine: Send {
    /// The engine and its version, such as `onnxruntime 1.32.0`.
    fn name(&self) -> String;

    /// Computes the logits of `batch` images.
    ///
    /// `images` holds f32 values in the order `[batch, channels, height, width]`. `logits` is cleared and filled with
    /// `[batch, classes]`. Any `batch` of at least 1 is allowed, whatever came before, unless the network's is fixed.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] where the number of values does not fit; [`Error::Batch`] where the network takes one size alone;
    /// [`Error::Engine`] for what the engine says.
    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()>;
}

/// The engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EngineKind {
    /// This crate's own.
    Native,
    /// ONNX Runtime.
    OnnxRuntime,
    /// tract.
    Tract,
}

impl EngineKind {
    /// Every engine, in the order in which [`EngineChoice::Auto`] tries them.
    pub const ALL: [Self; 3] = [Self::Native, Self::OnnxRuntime, Self::Tract];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::OnnxRuntime => "onnxruntime",
            Self::Tract => "tract",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which engine to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The fastest that can run the network here.
    #[default]
    Auto,
    /// This one or none.
    Only(EngineKind),
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = || EngineKind::ALL.into_iter();
        match text {
            "auto" => Ok(Self::Auto),
            _ => kinds().find(|kind| kind.name() == text).map(Self::Only).ok_or_else(|| {
                let names: Vec<_> = kinds().map(EngineKind::name).collect();
                format!("unknown engine `{text}`: use auto, {}", names.join(", "))
            }),
        }
    }
}

/// How an engine is to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Threads that compute one batch together, at least 1.
    pub threads: usize,
    /// The library of ONNX Runtime; without it `ORT_DYLIB_PATH` and the usual places are tried.
    pub onnxruntime: Option<PathBuf>,
}

impl Default for EngineOptions {
    /// One thread for each processor.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, onnxruntime: None }
    }
}

impl EngineOptions {
    /// Sets the threads that compute one batch together.
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Names the library of ONNX Runtime.
    pub fn with_onnxruntime(mut self, library: impl Into<PathBuf>) -> Self {
        self.onnxruntime = Some(library.into());
        self
    }
}

/// Makes a network ready to run.
///
/// # Errors
///
/// [`Error::Unavailable`], [`Error::Unsupported`] and [`Error::Engine`]. [`EngineChoice::Auto`] goes on to the next engine
/// for each of them; where none can run the network, it says why the first cannot.
pub fn load(onnx: &Onnx, choice: EngineChoice, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let kind = match choice {
        EngineChoice::Only(kind) => return load_kind(onnx, kind, options),
        EngineChoice::Auto => EngineKind::ALL,
    };
    let mut first = None;
    for kind in kind {
        match load_kind(onnx, kind, options) {
            Ok(engine) => return Ok(engine),
            Err(error @ (Error::Unavailable { .. } | Error::Unsupported { .. } | Error::Engine { .. })) => {
                log::debug!("{error}");
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(first.expect("there are engines"))
}

/// The engines that this machine has, and why it lacks the others. Whether one can run a network, [`load`] tells.
pub fn present(options: &EngineOptions) -> Vec<(EngineKind, Result<()>)> {
    let of = |kind| match kind {
        EngineKind::Native | EngineKind::Tract => Ok(()),
        EngineKind::OnnxRuntime => onnxruntime::present(options),
    };
    EngineKind::ALL.into_iter().map(|kind| (kind, of(kind))).collect()
}

fn load_kind(onnx: &Onnx, kind: EngineKind, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    // The field can be set to 0 as well.
    let options = &options.clone().with_threads(options.threads);
    let engine: Box<dyn Engine> = match kind {
        EngineKind::Native => Box::new(native::Native::load(onnx, options.threads)?),
        EngineKind::OnnxRuntime => Box::new(onnxruntime::OnnxRuntime::load(onnx, options)?),
        EngineKind::Tract => Box::new(tract::Tract::load(onnx, options.threads)?),
    };
    memory::give_back();
    Ok(engine)
}

/// Checks that `values` are those of `batch` images of the network.
fn check(onnx: &crate::Signature, batch: usize, values: usize) -> Result<()> {
    if let Some(fixed) = onnx.batch.filter(|fixed| *fixed != batch) {
        return Err(Error::Batch { batch, fixed });
    }
    let image = onnx.image_values();
    if batch == 0 || batch.checked_mul(image) != Some(values) {
        return Err(Error::Shape { values, batch, image });
    }
    Ok(())
}

/// Adds the logits that an engine of others gave, if they are as many as there should be.
fn answer(engine: EngineKind, expected: usize, values: &[f32], logits: &mut Vec<f32>) -> Result<()> {
    if values.len() != expected {
        let reason = format!("it gave {} values instead of {expected}", values.len());
        return Err(Error::Engine { engine, action: "run the network", reason });
    }
    logits.extend_from_slice(values);
    Ok(())
}
