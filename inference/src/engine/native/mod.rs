//! This crate's own engine.

use super::Engine;
use crate::{Onnx, Result};

/// A network of convolutions, compiled for this processor.
pub(super) struct Native {}

impl Native {
    /// Compiles the network for `threads` threads.
    pub(super) fn load(onnx: &Onnx, threads: usize) -> Result<Self> {
        let _ = (onnx.proto(), threads);
        todo!("helper A")
    }
}

impl Engine for Native {
    fn name(&self) -> String {
        concat!("native ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let _ = (batch, images, logits);
        todo!("helper A")
    }
}
