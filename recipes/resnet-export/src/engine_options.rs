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
    #[command(flatten)]
    means: EngineMeans,
}

/// What an engine may use, whichever it is.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineMeans {
    /// Threads that compute one batch together; all processors by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// The library of ONNX Runtime, such as libonnxruntime.so.1.31.0; or a folder that has it, such as that of the pip wheel.
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
}

impl EngineArgs {
    /// The options of the engine.
    pub(crate) fn options(&self) -> EngineOptions {
        self.means.options()
    }
}

impl EngineMeans {
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
    RecipeError::from_text(what, &in_options(error))
}

/// The text of an error. The library speaks to programmers; who runs a recipe has options.
pub(crate) fn in_options(error: &Error) -> String {
    [
        ("`EngineOptions::with_onnxruntime`", "`--onnxruntime PATH`"),
        ("choose another engine", "choose another --engine"),
        ("keep f32 weights", "use --weights f32"),
    ]
    .iter()
    .fold(error.to_string(), |text, (name, option)| text.replace(name, option))
}

#[cfg(test)]
mod tests {
    use burn_nccl_inference::{EngineKind, WeightType, present};

    use super::*;

    #[test]
    fn errors_of_the_library_name_options_and_nothing_of_its_interface() {
        let options = EngineOptions::default().with_onnxruntime("/nowhere/libonnxruntime.so");
        let absent = present(&options).into_iter().find_map(|(_, present)| present.err()).unwrap();
        let error = inference("cannot run", &absent);
        assert!(error.remedy.contains("(`--onnxruntime PATH`, or the variable ORT_DYLIB_PATH)"), "{error}");
        assert!(!error.to_string().contains("::"), "{error}");

        let (node, operation, reason) = ("n".into(), "Celu".into(), "r".into());
        let unsupported = Error::Unsupported { engine: EngineKind::Native, node, operation, reason };
        assert_eq!(inference("x", &unsupported).remedy, "choose another --engine");
        let weights = Error::Weights { tensor: "w".into(), weights: WeightType::F16, reason: "r".into() };
        assert_eq!(inference("x", &weights).remedy, "use --weights f32");
    }
}
