//! What several topics use.

use std::io::Write;
use std::path::PathBuf;

use burn_nccl_inference::{Engine, EngineChoice, EngineKind, EngineOptions, Error, Onnx, load};
use prost::Message;
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto};

/// The interpreter of `BURN_NCCL_PYTHON`; without it the caller's test is a printed skip.
pub(crate) fn python() -> Option<PathBuf> {
    let python = std::env::var_os("BURN_NCCL_PYTHON").map(PathBuf::from);
    if python.is_none() {
        skip("BURN_NCCL_PYTHON names no Python");
    }
    python
}

/// Tells of a test that is left out.
pub(crate) fn skip(reason: &str) {
    writeln!(std::io::stderr(), "skipped: {reason}").unwrap();
}

/// Options that find the ONNX Runtime of the Python environment, if there is one.
pub(crate) fn options() -> EngineOptions {
    let options = EngineOptions::default().with_threads(1);
    match std::env::var_os("BURN_NCCL_PYTHON") {
        Some(python) => options.with_onnxruntime(PathBuf::from(python).parent().unwrap().parent().unwrap()),
        None => options,
    }
}

/// The engine; none, with a printed skip, where this machine lacks it.
pub(crate) fn engine(onnx: &Onnx, kind: EngineKind, options: &EngineOptions) -> Option<Box<dyn Engine>> {
    match load(onnx, EngineChoice::Only(kind), options) {
        Ok(engine) => Some(engine),
        Err(Error::Unavailable { reason, .. }) => {
            skip(&reason);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The logits that tract computes.
pub(crate) fn logits(onnx: &Onnx, batch: usize, images: &[f32]) -> Vec<f32> {
    let mut engine = load(onnx, EngineChoice::Only(EngineKind::Tract), &options()).unwrap();
    let mut logits = Vec::new();
    engine.run(batch, images, &mut logits).unwrap();
    logits
}

/// The largest difference, as a part of the largest value.
pub(crate) fn difference(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let differences = expected.iter().zip(found).map(|(one, other)| (one - other).abs());
    differences.fold(
        0.0_f32,
        |most, difference| if difference > most { difference } else { most + 0.0 * difference },
    ) / largest
}

/// The graph that was written.
pub(crate) fn graph(onnx: &Onnx) -> GraphProto {
    ModelProto::decode(onnx.to_bytes().as_slice()).unwrap().graph.unwrap()
}

/// A tensor by its name.
pub(crate) fn tensor<'a>(graph: &'a GraphProto, name: &str) -> &'a TensorProto {
    graph.initializer.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
}

/// The values of an f32 tensor.
pub(crate) fn values(tensor: &TensorProto) -> Vec<f32> {
    tensor.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
