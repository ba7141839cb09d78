//! One network in ONNX Runtime.

use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::TensorRef;

use super::library::{Loaded, loaded};
use crate::engine::{Engine, EngineKind, EngineOptions, answer, check};
use crate::{Error, Onnx, Result, Signature};

/// A session of ONNX Runtime.
pub(in crate::engine) struct OnnxRuntime {
    session: Session,
    signature: Signature,
    version: String,
}

impl OnnxRuntime {
    pub(in crate::engine) fn load(onnx: &Onnx, options: &EngineOptions) -> Result<Self> {
        let loaded = loaded(options)?;
        let session = builder(&loaded, options.threads)
            .and_then(|mut builder| builder.commit_from_memory(&onnx.to_bytes()))
            .map_err(|error| failed("load the network", error))?;
        Ok(Self { session, signature: onnx.signature().clone(), version: loaded.version })
    }
}

fn builder(loaded: &Loaded, threads: usize) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(&loaded.environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_parallel_execution(false)?
        // Else narrow weights would be widened at each run.
        .with_quant_qdq(false)?
        // Threads spin while they wait for the next operation of a run, and sleep between runs. A ResNet-50 on two
        // threads takes 18.6 ms and 37 ms of processor time so. If they spun between runs too, as they do by default, it
        // would be 18.6 and 67, and if they never did, 19.6 and 39.
        .with_config_entry("session.force_spinning_stop", "1")?;
    Ok(builder)
}

fn failed(action: &'static str, error: ort::Error) -> Error {
    Error::Engine { engine: EngineKind::OnnxRuntime, action, reason: error.to_string() }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> String {
        format!("onnxruntime {}", self.version)
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        check(&self.signature, batch, images.len())?;
        let failed = |error| failed("run the network", error);
        let Signature { channels, height, width, classes, .. } = self.signature;
        let input = TensorRef::from_array_view(([batch, channels, height, width], images)).map_err(failed)?;
        let outputs = self.session.run(ort::inputs![input]).map_err(failed)?;
        let (_, values) = outputs[0].try_extract_tensor::<f32>().map_err(failed)?;
        logits.clear();
        answer(EngineKind::OnnxRuntime, batch * classes, values, logits)
    }
}
