//! `import`, and the example that fine-tunes what it made.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl::ProcessGroup;
use burn_nccl_datasets::Split;
use burn_nccl_inference::{Engine, EngineChoice, EngineKind, EngineOptions, Onnx, load};
use onnx_ir::{Message, ModelProto};

#[path = "../../examples/imported/digits.rs"]
mod digits;
#[path = "../../examples/imported/model.rs"]
mod model;
#[path = "../../examples/imported/onnx.rs"]
mod onnx;
#[path = "../../examples/imported/training.rs"]
mod training;

use model::Model;

const SIDE: usize = digits::SIDE;
/// Classes of the file as it came.
const SHAPES: usize = 8;

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/imported").join(file)
}

fn import(model: &Path, to: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-export"));
    command.arg("import").arg(model).arg("--to").arg(to).args(more).output().unwrap()
}

/// What an import that is refused says, and that it leaves nothing: cause and help.
fn refuses(model: &Path, more: &[&str], exit_code: i32) -> [String; 2] {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let output = import(model, &to, more);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit_code), "{stderr}");
    assert!(output.stdout.is_empty() && !to.exists());
    // Before it there may be warnings of the conversion.
    let lines: Vec<_> = stderr.lines().collect();
    let Some([error, cause, help]) = lines.last_chunk() else { panic!("not three lines: {stderr}") };
    assert!(error.starts_with("error: "), "{stderr}");
    [cause, help].map(|line| line.split_once(": ").unwrap().1.trim().to_owned())
}

fn proto() -> ModelProto {
    ModelProto::parse_from_bytes(&fs::read(example("thin_resnet.onnx")).unwrap()).unwrap()
}

/// The file with a change.
fn altered(folder: &Path, alter: impl FnOnce(&mut ModelProto)) -> PathBuf {
    let (mut proto, path) = (proto(), folder.join("altered.onnx"));
    alter(&mut proto);
    fs::write(&path, proto.write_to_bytes().unwrap()).unwrap();
    path
}

/// Values between -2 and 2 that repeat nowhere.
fn images(batch: usize, device: &Device) -> Tensor<4> {
    let shape = [batch, 3, SIDE, SIDE];
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|index| 2.0 * (index as f32 * 0.731).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn tract(onnx: &Onnx) -> Box<dyn Engine> {
    load(onnx, EngineChoice::Only(EngineKind::Tract), &EngineOptions::default()).unwrap()
}

#[test]
fn importing_the_file_again_gives_the_committed_code_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let output = import(&example("thin_resnet.onnx"), folder.path(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in ["thin_resnet.rs", "thin_resnet.bpk"] {
        let (made, committed) =
            (fs::read(folder.path().join(file)).unwrap(), fs::read(example(file)).unwrap());
        assert!(made == committed, "{file} is stale: write it again by `import`, see the README beside it");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("images [batch, 3, 32, 32] -> logits [batch, 8]"), "{text}");
    assert!(text.contains("38 to be trained, 24 running statistics"), "{text}");
    assert!(text.contains("mod thin_resnet {") && !text.contains("note:"), "{text}");
    assert!(output.stderr.is_empty(), "burn-onnx logs: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_generated_network_computes_what_the_file_computes() {
    let device = Device::flex();
    let model = model::load(&device);
    let mut engine = tract(&Onnx::open(example("thin_resnet.onnx")).unwrap());
    for batch in [1, 3, 8] {
        let images = images(batch, &device);
        let mut theirs = Vec::new();
        engine.run(batch, &images.to_data().try_to_vec::<f32>().unwrap(), &mut theirs).unwrap();
        let ours = model.forward(images).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!((ours.len(), theirs.len()), (batch * SHAPES, batch * SHAPES));
        let largest = theirs.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 1.0, "logits that are all small would be close to any");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() <= 1e-5 * largest.max(1.0), "batch {batch}: {ours} and {theirs}");
        }
    }
}

/// Values of each parameter by path, and whether it takes gradients.
#[derive(Default)]
struct Values {
    path: Vec<String>,
    found: BTreeMap<String, (Vec<f32>, bool)>,
}

impl Values {
    fn of(model: &Model) -> BTreeMap<String, (Vec<f32>, bool)> {
        let mut values = Self::default();
        model.visit(&mut values);
        values.found
    }
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().try_to_vec::<f32>().unwrap();
        self.found.insert(self.path.join("."), (values, param.is_require_grad()));
    }
}

fn is_statistic(name: &str) -> bool {
    name.ends_with("running_mean") || name.ends_with("running_var")
}

#[test]
fn one_training_step_changes_every_parameter_of_the_file() {
    let device = Device::flex().autodiff();
    let model = model::load(&device);
    let before = Values::of(&model);

    // The exporter writes equal tensors once: three biases are Identity nodes of others.
    let proto = proto();
    let names = || proto.graph.initializer.iter().map(|tensor| tensor.name.as_str());
    let copies = proto.graph.node.iter().filter(|node| node.op_type == "Identity").count();
    assert_eq!((names().count(), copies), (59, 3));
    let trainable = before.values().filter(|(_, takes_gradients)| *takes_gradients);
    assert_eq!(trainable.clone().count(), names().filter(|name| !is_statistic(name)).count() + copies);
    // What make_model.py counts with PyTorch.
    assert_eq!(trainable.map(|(values, _)| values.len()).sum::<usize>(), 78_832);

    let logits = model.forward(images(8, &device));
    let labels = Tensor::from_ints([0, 1, 2, 3, 4, 5, 6, 7], &device);
    let gradients = GradientsParams::from_grads(digits::cross_entropy(&logits, &labels).backward(), &model);
    // Queued changes of the running statistics are there once `valid()` is asked for.
    let after = Values::of(&SgdConfig::new().init().step(0.1, model, gradients).valid());
    assert_eq!(before.len(), after.len());
    for (name, (values, _)) in &before {
        assert!(after[name].0 != *values, "{name} is what it was");
        assert!(after[name].0.iter().all(|value| value.is_finite()), "{name}");
    }
}

#[test]
fn running_statistics_move_by_a_tenth_of_the_way_as_in_pytorch() {
    let device = Device::flex().autodiff();
    let model = model::load(&device);
    let first =
        |model: &Model| Values::of(&model.valid()).remove("batchnormalization1.running_mean").unwrap().0;
    let start = first(&model);
    // Of equal images, whose mean b is what the statistics r approach: r' = r + 0.1 (b - r).
    let steps = [(); 2].map(|()| {
        let _ = model.forward(images(4, &device)).into_data();
        first(&model)
    });
    for channel in 0..start.len() {
        let moved = [steps[0][channel] - start[channel], steps[1][channel] - steps[0][channel]];
        let ratio = moved[1] / moved[0];
        assert!((ratio - 0.9).abs() < 1e-3, "channel {channel}: {moved:?}");
    }
    // The network that only classifies leaves them.
    let valid = model.valid();
    let _ = valid.forward(images(4, &Device::flex())).into_data();
    assert_eq!(first(&valid), steps[1]);
}

#[test]
fn fine_tuning_learns_the_digits_and_the_exported_file_has_learned_them() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = model::load(&device).with_classes(digits::CLASSES);
    let test = digits::loader(Split::Test, &Device::flex(), 0, 1).unwrap();
    let before = digits::evaluate(&model.valid(), &test).unwrap();
    assert!(before.accuracy < 0.3, "{before:?}");

    let group = ProcessGroup::from_environment().unwrap();
    let mut losses = Vec::new();
    let model =
        training::fine_tune(model, 2, &group, &device, |_, score| losses.push(score.loss)).unwrap().valid();
    assert!(losses[1] < losses[0], "{losses:?}");
    let after = digits::evaluate(&model, &test).unwrap();
    assert!(after.accuracy > 0.85 && after.loss < before.loss, "{before:?} {after:?}");

    let mut exported = onnx::export(&model).unwrap();
    assert_eq!(exported.signature().batch, None);
    assert_eq!((exported.signature().channels, exported.signature().classes), (3, 10));
    assert_eq!(exported.fold_batch_norms().unwrap(), 12);
    let difference = onnx::largest_difference(&exported, &model, &test).unwrap();
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn what_is_no_usable_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let whole = fs::read(example("thin_resnet.onnx")).unwrap();
    refuses(&folder.path().join("missing.onnx"), &[], 1);
    refuses(&file("empty.onnx", b""), &[], 1);
    refuses(&file("foreign.onnx", b"PK\x03\x04 this is an archive of something"), &[], 1);
    refuses(&file("cut.onnx", &whole[..whole.len() / 2]), &[], 1);
    let outside = altered(folder.path(), |proto| {
        // `data_location: EXTERNAL`, field 14.
        proto.graph.as_mut().unwrap().initializer[0].merge_from_bytes(&[0x70, 1]).unwrap();
    });
    let [cause, help] = refuses(&outside, &[], 1);
    assert!(cause.contains("conv1.weight"), "{cause}; {help}");
}

#[test]
fn an_operation_that_cannot_be_converted_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let unknown = altered(folder.path(), |proto| {
        proto.graph.as_mut().unwrap().node[5].op_type = "Rubu".into();
    });
    let [cause, help] = refuses(&unknown, &[], 1);
    assert!(cause.contains("Rubu"), "{cause}");
    assert!(help.contains("--help"), "{help}");
}

#[test]
fn a_batch_norm_that_computes_with_the_statistics_of_the_batch_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let training = altered(folder.path(), |proto| {
        let nodes = &mut proto.graph.as_mut().unwrap().node;
        let norm = nodes.iter_mut().find(|node| node.op_type == "BatchNormalization").unwrap();
        let attribute =
            norm.attribute.iter_mut().find(|attribute| attribute.name == "training_mode").unwrap();
        attribute.i = 1;
    });
    let [cause, _] = refuses(&training, &[], 1);
    assert!(cause.contains("training mode"), "{cause}");
}

#[test]
fn a_name_that_no_module_can_have_is_refused_and_another_is_taken() {
    let file = example("thin_resnet.onnx");
    let [cause, help] = refuses(&file, &["--name", "thin-resnet"], 2);
    assert_eq!(cause, "`thin-resnet` is no name of a Rust module");
    assert!(help.ends_with("--name thin_resnet"), "{help}");
    refuses(&file, &["--name", "mod"], 2);

    let folder = tempfile::tempdir().unwrap();
    assert!(import(&file, folder.path(), &["--name", "shapes"]).status.success());
    assert!(folder.path().join("shapes.rs").exists() && folder.path().join("shapes.bpk").exists());
}

#[test]
fn existing_files_stay_unless_they_may_be_replaced() {
    let (folder, file) = (tempfile::tempdir().unwrap(), example("thin_resnet.onnx"));
    let code = folder.path().join("thin_resnet.rs");
    fs::write(&code, "mine").unwrap();
    let output = import(&file, folder.path(), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--overwrite"), "{stderr}");
    assert_eq!(fs::read_to_string(&code).unwrap(), "mine");
    assert!(import(&file, folder.path(), &["--overwrite"]).status.success());
    assert_eq!(fs::read(&code).unwrap(), fs::read(example("thin_resnet.rs")).unwrap());
}
