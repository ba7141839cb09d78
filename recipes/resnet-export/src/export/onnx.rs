//! From a Burn module to the bytes of an ONNX file.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::backend::capture::{CaptureBackend, TensorId};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_onnx::export::{AxisSpec, ExportError, InputSpec, OnnxExporter, Opset};

use super::parameters::{Look, visit};
use super::place::{Place, Recording};
use crate::panic_text::panic_text;

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
    #[error(
        "the network is in training mode: `{parameter}` is on a device with autodiff; export its `valid()`"
    )]
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
    #[error(
        "{operation} {place} does not work for every batch size: {reason}; write it without the batch's size"
    )]
    FixedBatch {
        /// Burn's name of the operation.
        operation: String,
        /// Where it is.
        place: Place,
        /// What the exporter says.
        reason: String,
    },
    /// The forward pass wants a value that does not exist while operations are only recorded.
    #[error(
        "the forward pass cannot be recorded: {reason}; it must neither read values of tensors nor branch on them"
    )]
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
    let exported = catch_unwind(AssertUnwindSafe(|| export(module, image, spied))).map_err(|panic| {
        OnnxError::NotRecordable { reason: panic_text(panic.as_ref()).unwrap_or("it panicked").to_owned() }
    })?;
    exported.map_err(|error| explain(error, module, image, &forward, first_input.get()))
}

fn export<M: Module>(
    module: &M,
    [channels, height, width]: [usize; 3],
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) -> Result<Vec<u8>, ExportError> {
    let [sample, validation] = BATCHES.map(|batch| zeros([batch, channels, height, width]));
    let spec =
        InputSpec::new([AxisSpec::dynamic("batch"), AxisSpec::Static, AxisSpec::Static, AxisSpec::Static]);
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

/// The path of the first parameter that is made for training. (The list of a module's devices does not tell.)
fn training_parameter(module: &impl Module) -> Option<String> {
    #[derive(Default)]
    struct Training(Option<String>);
    impl Look for Training {
        fn look<const D: usize>(&mut self, path: &str, param: &Param<Tensor<D>>) {
            if self.0.is_none() && param.lazy_device().is_autodiff() {
                self.0 = Some(path.to_owned());
            }
        }
    }
    let mut first = Training::default();
    visit(module, &mut first);
    first.0
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::activation::relu;
    use burn_nccl_inference::{EngineChoice, EngineKind, EngineOptions, Onnx, load};

    use super::*;

    const IMAGE: [usize; 3] = [3, 4, 4];

    /// A convolution, a stage of two layers and a classifier.
    #[derive(Module, Debug)]
    struct Small {
        conv1: Conv2d,
        stage: Vec<Layer>,
        fc: Linear,
    }

    #[derive(Module, Debug)]
    struct Layer {
        conv: Conv2d,
        bn: BatchNorm,
    }

    impl Small {
        fn new(device: &Device) -> Self {
            let conv = |channels| Conv2dConfig::new([channels, 2], [1, 1]).init(device);
            let layer = || Layer { conv: conv(2), bn: BatchNormConfig::new(2).init(device) };
            Self {
                conv1: conv(3),
                stage: vec![layer(), layer()],
                fc: LinearConfig::new(2 * 4 * 4, 5).init(device),
            }
        }

        /// With `between` behind the first layer of the stage.
        fn run(&self, images: Tensor<4>, between: impl Fn(Tensor<4>) -> Tensor<4>) -> Tensor<2> {
            let mut x = relu(self.conv1.forward(images));
            for (index, layer) in self.stage.iter().enumerate() {
                x = layer.bn.forward(layer.conv.forward(x));
                x = if index == 0 { between(x) } else { relu(x) };
            }
            self.fc.forward(x.flatten(1, 3))
        }
    }

    fn small() -> Small {
        Small::new(&Device::flex())
    }

    #[test]
    fn an_operation_that_cannot_be_exported_is_named_with_the_layers_around_it() {
        let error = to_onnx(&small(), IMAGE, |small, images| small.run(images, Tensor::sin)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Sin after `stage.0.bn` and before `stage.1.conv` cannot be exported to ONNX; replace it in the forward pass"
        );
    }

    #[test]
    fn the_first_and_the_last_operation_have_a_layer_on_one_side() {
        let place = |forward: fn(&Small, Tensor<4>) -> Tensor<2>| match to_onnx(&small(), IMAGE, forward) {
            Err(OnnxError::Unsupported { operation, place, .. }) => (operation, place.to_string()),
            other => panic!("{other:?}"),
        };
        let first = place(|small, images| small.run(images.sin(), relu));
        assert_eq!(first, ("Sin".into(), "before `conv1`".into()));
        let last = place(|small, images| small.run(images, relu).sin());
        assert_eq!(last, ("Sin".into(), "after `fc`".into()));
        let within = place(|small, images| {
            small.run(images, relu) * small.fc.bias.as_ref().unwrap().val().sin().unsqueeze()
        });
        assert_eq!(within, ("Sin".into(), "in `fc`".into()));
        let outside = place(|_, images| images.flatten::<2>(1, 3).sin());
        assert_eq!(outside, ("Sin".into(), "outside of any layer".into()));
    }

    #[test]
    fn what_depends_on_the_batch_size_is_named_with_its_place() {
        let sliced = to_onnx(&small(), IMAGE, |small, images| {
            small.run(images, |x| {
                let [batch, ..] = x.dims();
                x.clone().slice(burn::tensor::s![0..batch]) + x
            })
        });
        match sliced.unwrap_err() {
            OnnxError::FixedBatch { operation, place, .. } => {
                assert_eq!(operation, "Slice");
                assert_eq!(place.to_string(), "after `stage.0.bn` and before `stage.1.conv`");
            }
            other => panic!("{other}"),
        }
        // One more operation for three images than for two.
        let counted = to_onnx(&small(), IMAGE, |small, images| {
            small.run(images, |x| if x.dims()[0] == 3 { relu(relu(x)) } else { relu(x) })
        });
        assert!(matches!(counted.unwrap_err(), OnnxError::FixedBatch { .. } | OnnxError::Exporter { .. }));
    }

    #[test]
    fn a_forward_pass_that_reads_values_is_refused_as_such() {
        let forward = |small: &Small, images: Tensor<4>| {
            let brightness = images.clone().mean().into_data().try_to_vec::<f32>().unwrap()[0];
            small.run(images, |x| x * brightness)
        };
        let error = to_onnx(&small(), IMAGE, forward).unwrap_err();
        assert!(matches!(error, OnnxError::NotRecordable { .. }), "{error}");
        // And what comes after it is not disturbed.
        to_onnx(&small(), IMAGE, |small, images| small.run(images, relu)).unwrap();
    }

    #[test]
    fn a_module_in_training_mode_is_refused_and_its_evaluation_form_is_not() {
        // E5: batch statistics must not be exported.
        let training = Small::new(&Device::flex().autodiff());
        let forward = |small: &Small, images: Tensor<4>| small.run(images, relu);
        let error = to_onnx(&training, IMAGE, forward).unwrap_err();
        assert!(
            matches!(&error, OnnxError::Training { parameter } if parameter == "conv1.weight"),
            "{error}"
        );
        to_onnx(&training.valid(), IMAGE, forward).unwrap();
    }

    #[test]
    fn a_trained_module_is_exported_with_its_running_statistics() {
        // E5: the exported file gives what `valid()` gives, and not what training gives.
        let device = Device::flex();
        let training = Small::new(&device.clone().autodiff());
        let images = |count: usize, device: &Device| {
            let values = crate::test_images::random_values(count * 48);
            Tensor::<4>::from_data(burn::tensor::TensorData::new(values, [count, 3, 4, 4]), device)
        };
        let forward = |small: &Small, images: Tensor<4>| small.run(images, relu);
        for _ in 0..3 {
            forward(&training, images(8, &device.clone().autodiff()) * 3.0 + 1.0);
        }
        let in_training = forward(&training, images(2, &device.clone().autodiff())).into_data();
        let valid = training.valid();
        let expected = forward(&valid, images(2, &device)).into_data();
        let onnx = Onnx::from_bytes(&to_onnx(&valid, IMAGE, forward).unwrap()).unwrap();
        let options = EngineOptions::default().with_threads(1);
        let mut engine = load(&onnx, EngineChoice::Only(EngineKind::Tract), &options).unwrap();
        let mut logits = Vec::new();
        engine.run(2, &crate::test_images::random_values(96), &mut logits).unwrap();
        let far = |data: &burn::tensor::TensorData| {
            let expected = data.iter::<f32>();
            expected.zip(&logits).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max)
        };
        assert!(far(&expected) < 1e-5, "{}", far(&expected));
        assert!(far(&in_training) > 1e-2, "{}", far(&in_training));
    }
}
