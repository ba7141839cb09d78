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
///
/// A free batch is run image by image. tract takes the images of a batch one after the other as well, and for a batch of
/// one it chooses better products: an image of a ResNet-50 takes twice as long in a batch of 8, and 2.2 times as long
/// where the batch was a symbol when the network was optimised.
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

    /// Computes one batch of the size that the network was optimised for.
    fn step(&self, shape: [usize; 4], images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let outputs = guarded("run the network", || {
            let input = Tensor::from_shape(&shape, images)?;
            self.plan.run(tvec![input.into()])
        })?;
        let values =
            outputs.first().map(|output| output.try_as_plain_ram().and_then(|plain| plain.as_slice::<f32>()));
        match values {
            Some(Ok(values)) => answer(EngineKind::Tract, shape[0] * self.signature.classes, values, logits),
            Some(Err(error)) => Err(failed("run the network", format!("{error:#}"))),
            None => Err(failed("run the network", "it gave no output".to_owned())),
        }
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
    // What the file says of other values may have a free batch, which is fixed below.
    let reader = tract_onnx::onnx().with_ignore_value_info(true).with_ignore_output_shapes(true);
    let mut model = reader.model_for_proto_model(&model)?;
    model.set_input_fact(0, f32::fact(step(signature)).into())?;
    let model = model.into_optimized()?;
    check_sizes(&model)?;
    model.into_runnable_with_options(options)
}

/// A pad or a stride of a damaged file can ask for more than any machine has, and to be refused memory ends the process.
fn check_sizes(model: &TypedModel) -> TractResult<()> {
    const MAX_ELEMENTS: usize = 1 << 30;
    for node in model.nodes() {
        for output in &node.outputs {
            let sizes = output.fact.shape.as_concrete().unwrap_or_default();
            let elements = sizes.iter().try_fold(1_usize, |elements, size| elements.checked_mul(*size));
            if elements.is_none_or(|elements| elements > MAX_ELEMENTS) {
                return Err(TractError::msg(format!(
                    "node `{}` makes a value of shape {sizes:?}",
                    node.name
                )));
            }
        }
    }
    Ok(())
}

/// The shape of the input that one run takes.
fn step(signature: &Signature) -> [usize; 4] {
    let Signature { batch, channels, height, width, .. } = *signature;
    [batch.unwrap_or(1), channels, height, width]
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
        logits.clear();
        let shape = step(&self.signature);
        for images in images.chunks_exact(shape.iter().product()) {
            self.step(shape, images, logits)?;
        }
        Ok(())
    }
}
