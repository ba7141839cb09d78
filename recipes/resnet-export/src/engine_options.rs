//! The options of all commands that run a network.

use std::path::PathBuf;

use burn_nccl_inference::{EngineChoice, EngineOptions, Error};
use clap::Args;
use recipe_common::RecipeError;

/// Which engine runs the network, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineArgs {
    /// auto takes the fastest that can run the network here: native, onnxruntime or tract.
    #[arg(long, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: EngineChoice,
    /// Threads that compute one batch together; all processors by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// The library of ONNX Runtime, such as libonnxruntime.so.1.31.0; or a folder that has it, such as that of the pip wheel.
    #[arg(long, value_name = "PATH")]
    pub(crate) onnxruntime: Option<PathBuf>,
}

impl EngineArgs {
    /// The options of the engine.
    pub(crate) fn options(&self) -> EngineOptions {
        let mut options = EngineOptions::default();
        if let Some(threads) = self.threads {
            options = options.with_threads(threads.into());
        }
        if let Some(library) = &self.onnxruntime {
            options = options.with_onnxruntime(library);
        }
        options
    }
}

/// What the user is told of an error of the inference library.
pub(crate) fn inference(what: impl Into<String>, error: &Error) -> RecipeError {
    RecipeError::from_text(what, &error.to_string())
}
