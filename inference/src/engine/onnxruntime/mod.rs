//! ONNX Runtime, loaded when it is first asked for.

mod library;
mod places;
mod session;

use super::EngineOptions;
use crate::Result;

pub(super) use session::OnnxRuntime;

/// Whether the library can be had. Loads it.
pub(super) fn present(options: &EngineOptions) -> Result<()> {
    library::loaded(options).map(drop)
}
