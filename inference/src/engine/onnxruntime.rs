//! ONNX Runtime, loaded when it is first asked for.

use super::{Engine, EngineOptions};
use crate::{Onnx, Result};

/// A session of ONNX Runtime.
pub(super) struct OnnxRuntime {}

/// Whether the library can be had.
pub(super) fn present(options: &EngineOptions) -> Result<()> {
    let _ = options;
    todo!("helper B")
}

impl OnnxRuntime {
    pub(super) fn load(onnx: &Onnx, options: &EngineOptions) -> Result<Self> {
        let _ = (onnx, options);
        todo!("helper B")
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> String {
        todo!("helper B")
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let _ = (batch, images, logits);
        todo!("helper B")
    }
}
