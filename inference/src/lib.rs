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
//! Nothing here needs Burn, Python or the network.

mod engine;
mod error;
mod onnx;
#[cfg(test)]
#[allow(dead_code, reason = "each test uses a part")]
mod testing;

pub use engine::{Engine, EngineChoice, EngineKind, EngineOptions, load, present};
pub use error::{Error, Result};
pub use onnx::{Onnx, Signature, WeightType};
