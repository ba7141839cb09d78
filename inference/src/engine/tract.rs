//! tract.

use super::Engine;
use crate::{Onnx, Result};

/// A network that tract has optimised.
pub(super) struct Tract {}

impl Tract {
    pub(super) fn load(onnx: &Onnx, threads: usize) -> Result<Self> {
        let _ = (onnx, threads);
        todo!("helper B")
    }
}

impl Engine for Tract {
    fn name(&self) -> String {
        todo!("helper B")
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let _ = (batch, images, logits);
        todo!("helper B")
    }
}
