//! One network in ONNX Runtime.

use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::TensorRef;

use super::library::{Loaded, loaded};
use crate::engine::{Engine, EngineKind, EngineOptions, check};
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
        let failed = |error: String| failed("load the network", error);
        let mut builder = builder(&loaded, options.threads).map_err(failed)?;
        let session =
            builder.commit_from_memory(&onnx.to_bytes()).map_err(|error| failed(error.to_string()))?;
        Ok(Self { session, signature: onnx.signature().clone(), version: loaded.version })
    }
}

fn builder(loaded: &Loaded, threads: usize) -> Result<SessionBuilder, String> {
    let builder = Session::builder(&loaded.environment).map_err(|error| error.to_string())?;
    let configure = |builder: SessionBuilder| {
        builder
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_intra_threads(threads)?
            .with_inter_threads(1)?
            .with_parallel_execution(false)?
            // Else narrow weights would be widened at each run.
            .with_quant_qdq(false)?
            // Threads wait for the next operation of a run by spinning, which is what makes two of them worth while, and
            // sleep between runs, so that they take no time from others.
            .with_config_entry("session.force_spinning_stop", "1")
    };
    configure(builder).map_err(|error| error.to_string())
}

fn failed(action: &'static str, reason: String) -> Error {
    Error::Engine { engine: EngineKind::OnnxRuntime, action, reason }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> String {
        format!("onnxruntime {}", self.version)
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        check(&self.signature, batch, images.len())?;
        let failed = |error: ort::Error| failed("run the network", error.to_string());
        let Signature { channels, height, width, classes, .. } = self.signature;
        let input = TensorRef::from_array_view(([batch, channels, height, width], images)).map_err(failed)?;
        let outputs = self.session.run(ort::inputs![input]).map_err(failed)?;
        let (_, values) = outputs[0].try_extract_tensor::<f32>().map_err(failed)?;
        super::super::answer(EngineKind::OnnxRuntime, batch * classes, values, logits)
    }
}
