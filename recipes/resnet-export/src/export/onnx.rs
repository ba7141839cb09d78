//! From a Burn module to the bytes of an ONNX file.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::backend::capture::{CaptureBackend, TensorId};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_onnx::export::{AxisSpec, ExportError, InputSpec, OnnxExporter, Opset};

use super::place::{Place, Recording};

/// The operators' version that files are written in.
pub(crate) const OPSET: Opset = Opset::V18;

/// Two batch sizes, by which the exporter tells the batch axis from constants. Neither is 1, which broadcasting hides.
const BATCHES: [usize; 2] = [2, 3];

/// Tensors are numbered over the whole process: another recording at the same time would shift the numbers by which an
/// error's tensor is found again.
static RECORDING: Mutex<()> = Mutex::new(());

/// Why a module could not be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OnnxError {
    /// Batch normalisation would export the statistics of a batch.
    #[error("the network is in training mode: `{parameter}` is on a device with autodiff; export its `valid()`")]
    Training {
        /// The first parameter that is.
        parameter: String,
    },
    /// An operation has no counterpart in ONNX, or its exporter none.
    #[error("{operation} {place} cannot be exported to ONNX{reason}; replace it in the forward pass")]
    Unsupported {
        /// Burn's name of the operation.
        operation: String,
        /// Where it is.
        place: Place,
        /// What the exporter says beside the name.
        reason: String,
    },
    /// The operations or their sizes depend on the batch in a way that one file cannot hold.
    #[error("{operation} {place} does not work for every batch size: {reason}; write it without the batch's size")]
    FixedBatch {
        /// Burn's name of the operation.
        operation: String,
        /// Where it is.
        place: Place,
        /// What the exporter says.
        reason: String,
    },
    /// The forward pass wants a value that does not exist while operations are only recorded.
    #[error("the forward pass cannot be recorded: {reason}; it must neither read values of tensors nor branch on them")]
    NotRecordable {
        /// The panic's message.
        reason: String,
    },
    /// The exporter failed otherwise.
    #[error("the exporter failed: {source}; save the weights as safetensors and report the network")]
    Exporter {
        /// What it says.
        source: ExportError,
    },
}

/// Records `forward` and returns it as an ONNX file: input `[batch, ..image]`, any batch size; the weights are inside.
///
/// Running statistics are shared by the clones of a module: those of `module` are on the recorder's device afterwards,
/// so that it should not be used any more.
///
/// # Errors
///
/// [`OnnxError::Training`] for a module that is not in its evaluation form; what cannot be exported, with its place.
pub(crate) fn to_onnx<M, F>(module: &M, image: [usize; 3], forward: F) -> Result<Vec<u8>, OnnxError>
where
    M: Module,
    F: Fn(&M, Tensor<4>) -> Tensor<2>,
{
    if let Some(parameter) = training_parameter(module) {
        return Err(OnnxError::Training { parameter });
    }
    let _alone = RECORDING.lock().unwrap_or_else(PoisonError::into_inner);
    let first_input = Cell::new(None);
    let spied = |module: &M, images: Tensor<4>| {
        first_input.set(first_input.get().or_else(|| tensor_id(&images)));
        forward(module, images)
    };
    let exported = catch_unwind(AssertUnwindSafe(|| export(module, image, spied)))
        .map_err(|panic| OnnxError::NotRecordable { reason: panic_text(panic.as_ref()) })?;
    exported.map_err(|error| explain(error, module, image, &forward, first_input.get()))
}

fn export<M: Module>(
    module: &M,
    [channels, height, width]: [usize; 3],
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) -> Result<Vec<u8>, ExportError> {
    let [sample, validation] = BATCHES.map(|batch| zeros([batch, channels, height, width]));
    let spec = InputSpec::new([
        AxisSpec::dynamic("batch"),
        AxisSpec::Static,
        AxisSpec::Static,
        AxisSpec::Static,
    ]);
    let exporter = OnnxExporter::new().opset(OPSET);
    exporter.export_dynamic(module, sample, validation, &[spec], forward).map(|model| model.into_bytes())
}

/// Images for a recording, which looks at their shape alone.
pub(super) fn zeros(shape: [usize; 4]) -> Tensor<4> {
    Tensor::zeros(shape, &Device::default())
}

/// The exporter's error with the place that it does not tell. The forward pass is recorded once more for it.
fn explain<M: Module>(
    error: ExportError,
    module: &M,
    [channels, height, width]: [usize; 3],
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
    first_input: Option<TensorId>,
) -> OnnxError {
    let shape = [BATCHES[0], channels, height, width];
    let Some(recording) = Recording::of(module, shape, forward) else {
        return OnnxError::Exporter { source: error };
    };
    let at = match &error {
        ExportError::UnsupportedOperation { operation, .. }
        | ExportError::DynamicGraphMismatch { operation, .. } => Some(*operation),
        ExportError::DynamicShapeLost { tensor, .. } | ExportError::UnsupportedDType { tensor, .. } => {
            first_input.and_then(|input| recording.index_of(*tensor, input))
        }
        _ => None,
    };
    let found = at.and_then(|index| Some((recording.operation(index)?, recording.place(index))));
    match (error, found) {
        (ExportError::UnsupportedOperation { kind, .. }, Some((operation, place))) => {
            // Either the operation as Debug prints it, or a sentence.
            let reason = if kind.contains('{') { String::new() } else { format!(": {kind}") };
            OnnxError::Unsupported { operation, place, reason }
        }
        (ExportError::UnsupportedDType { dtype, .. }, Some((operation, place))) => {
            OnnxError::Unsupported { operation, place, reason: format!(": ONNX has no {dtype}") }
        }
        (
            ExportError::DynamicShapeLost { reason, .. } | ExportError::DynamicGraphMismatch { reason, .. },
            Some((operation, place)),
        ) => OnnxError::FixedBatch { operation, place, reason },
        (source, _) => OnnxError::Exporter { source },
    }
}

pub(super) fn tensor_id<const D: usize>(tensor: &Tensor<D>) -> Option<TensorId> {
    tensor.clone().try_into_primitive::<CaptureBackend>().ok().map(|primitive| primitive.id())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    text.unwrap_or("it panicked").to_owned()
}

/// The path of the first parameter that is made for training. (The list of a module's devices does not tell.)
fn training_parameter(module: &impl Module) -> Option<String> {
    #[derive(Default)]
    struct Finder {
        path: Vec<String>,
        found: Option<String>,
    }
    impl ModuleVisitor for Finder {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.found.is_none() && param.lazy_device().is_autodiff() {
                self.found = Some(self.path.join("."));
            }
        }
    }
    let mut finder = Finder::default();
    module.visit(&mut finder);
    finder.found
}
