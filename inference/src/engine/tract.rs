//! tract.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::*;

use super::{Engine, EngineKind, answer, check};
use crate::{Error, Onnx, Result, Signature};

/// A network that tract has optimised.
pub(super) struct Tract {
    plan: Arc<TypedRunnableModel>,
    signature: Signature,
}

impl Tract {
    pub(super) fn load(onnx: &Onnx, threads: usize) -> Result<Self> {
        let signature = onnx.signature().clone();
        let options = RunOptions { executor: executor(threads)?, ..Default::default() };
        let plan = guarded("load the network", || plan(onnx.widened(), &signature, &options))?;
        Ok(Self { plan, signature })
    }
}

/// Threads of this engine alone; without them tract would take those of the whole process.
fn executor(threads: usize) -> Result<Option<Executor>> {
    if threads == 1 {
        return Ok(Some(Executor::SingleThread));
    }
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("tract-{index}"));
    let pool = pool.build().map_err(|error| failed("start its threads", error.to_string()))?;
    Ok(Some(Executor::MultiThread(Arc::new(pool))))
}

fn plan(
    model: Cow<'_, ModelProto>,
    signature: &Signature,
    options: &RunOptions,
) -> TractResult<Arc<TypedRunnableModel>> {
    // What the file says of values in between may use other names for the batch than the one below.
    let reader = tract_onnx::onnx().with_ignore_value_info(true).with_ignore_output_shapes(true);
    let mut model = reader.model_for_proto_model(&model)?;
    let batch = match signature.batch {
        Some(batch) => batch.to_dim(),
        None => model.symbols.sym("images").to_dim(),
    };
    let image = [signature.channels, signature.height, signature.width];
    let shape: Vec<TDim> = std::iter::once(batch).chain(image.map(|size| size.to_dim())).collect();
    model.set_input_fact(0, f32::fact(shape).into())?;
    model.into_optimized()?.into_runnable_with_options(options)
}

/// tract checks less of a file than it relies on, and panics where it should not.
fn guarded<T>(action: &'static str, work: impl FnOnce() -> TractResult<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| failed(action, format!("{error:#}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(failed(action, format!("it panicked: {}", text.unwrap_or("without a reason"))))
        }
    }
}

fn failed(action: &'static str, reason: String) -> Error {
    Error::Engine { engine: EngineKind::Tract, action, reason }
}

impl Engine for Tract {
    fn name(&self) -> String {
        // The version that Cargo.toml asks for: the crate does not tell its own.
        "tract 0.23".to_owned()
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        check(&self.signature, batch, images.len())?;
        let Signature { channels, height, width, classes, .. } = self.signature;
        let plan = &self.plan;
        let outputs = guarded("run the network", || {
            let input = Tensor::from_shape(&[batch, channels, height, width], images)?;
            plan.run(tvec![input.into()])
        })?;
        let values =
            outputs.first().map(|output| output.try_as_plain_ram().and_then(|plain| plain.as_slice::<f32>()));
        match values {
            Some(Ok(values)) => answer(EngineKind::Tract, batch * classes, values, logits),
            Some(Err(error)) => Err(failed("run the network", format!("{error:#}"))),
            None => Err(failed("run the network", "it gave no output".to_owned())),
        }
    }
}
