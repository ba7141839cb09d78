//! Image classifiers in ONNX, on CPUs: read, made smaller and faster, run.
//!
//! [`Onnx`] is a checked file: a network that takes images `[batch, channels, height, width]` and gives logits
//! `[batch, classes]`. It can be changed into an equal network that costs less ([`Onnx::fold_batch_norms`],
//! [`Onnx::set_weights`]), and an [`Engine`] runs it:
//!
//! | engine | what it is | needs |
//! |---|---|---|
//! | [`EngineKind::Native`] | this crate's own, for networks of convolutions | nothing |
//! | [`EngineKind::Tract`] | [tract](https://github.com/sonos/tract), for most of ONNX | nothing |
//! | [`EngineKind::OnnxRuntime`] | [ONNX Runtime](https://onnxruntime.ai) | its library, found at run time |
//!
//! ```no_run
//! use burn_nccl_inference::{EngineChoice, EngineOptions, Onnx, WeightType, load};
//!
//! # fn main() -> burn_nccl_inference::Result<()> {
//! let mut onnx = Onnx::open("model.onnx")?;
//! onnx.fold_batch_norms()?;
//! onnx.set_weights(WeightType::F16)?;
//!
//! let images = vec![0.0; 2 * onnx.signature().image_values()];
//! let mut engine = load(&onnx, EngineChoice::Auto, &EngineOptions::default().with_threads(2))?;
//! let mut logits = Vec::new();
//! engine.run(2, &images, &mut logits)?;
//! assert_eq!(logits.len(), 2 * onnx.signature().classes);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here needs Burn, Python or the network.

mod engine;
mod error;
mod memory;
mod onnx;
#[cfg(test)]
#[allow(dead_code, reason = "each test uses a part")]
mod testing;

pub use engine::{Engine, EngineChoice, EngineKind, EngineOptions, load, present};
pub use error::{Error, Result};
pub use onnx::{Onnx, Signature, WeightType};
