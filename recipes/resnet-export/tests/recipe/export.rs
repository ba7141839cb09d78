use std::fs;
use std::path::Path;
use std::process::Command;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};
use burn_nccl_models::{Depth, ResNetConfig, Stem};
use burn_nccl_records::{OpenOptions, SaveDType, SaveOptions, Source, save, save_model};
use prost::Message;
use tract_onnx::pb::ModelProto;

use crate::fixtures::*;

const FILES: [&str; 6] =
    ["labels.txt", "manifest.json", "model.bpk", "model.onnx", "model.safetensors", "preprocess.json"];

fn proto(export: &Path) -> ModelProto {
    ModelProto::decode(fs::read(export.join("model.onnx")).unwrap().as_slice()).unwrap()
}

#[test]
fn an_exported_network_gives_burns_logits_for_any_batch_size() {
    // E1 and E6 of the collected reports: export the small network, run it by tract, one image, three and eight.
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    let said = export(folder.path(), "");
    assert!(
        said.contains("20 batch normalisations folded") && said.contains("accuracy on 8 test images"),
        "{said}"
    );
    let out = folder.path().join("out");
    assert_eq!(entries(&out), FILES);
    let mut by_tract = tract(&out);
    for batch in [1, 3, 8] {
        let images = images(batch, 32);
        let expected = by_burn(&folder.path().join("model.bpk"), batch, 32, &images);
        let found = by_tract(batch, &images);
        assert_eq!(found.len(), batch * 10);
        assert!(relative(&expected, &found) < 1e-4, "batch {batch}: {}", relative(&expected, &found));
    }
    let graph = proto(&out).graph.unwrap();
    assert_eq!((graph.input[0].name.as_str(), graph.output[0].name.as_str()), ("images", "logits"));
}

#[test]
fn without_folding_normalisations_keep_their_four_constants_and_the_logits_stay() {
    // E3: gamma, beta, mean and variance are initialisers.
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    export(folder.path(), "");
    let folded = by_tract(&folder.path().join("out"), 3, &images(3, 32));
    let said = export(folder.path(), "--no-fold --overwrite");
    assert!(said.contains("0 batch normalisations folded"), "{said}");
    let out = folder.path().join("out");
    let graph = proto(&out).graph.unwrap();
    let norms: Vec<_> = graph.node.iter().filter(|node| node.op_type == "BatchNormalization").collect();
    assert_eq!(norms.len(), 20);
    for norm in norms {
        for (constant, part) in norm.input[1..].iter().zip(["gamma", "beta", "running_mean", "running_var"]) {
            assert!(constant.ends_with(part), "{constant}");
            let found = graph.initializer.iter().find(|tensor| tensor.name == *constant);
            assert_eq!(found.unwrap_or_else(|| panic!("{constant}")).dims.len(), 1);
        }
    }
    let unfolded = by_tract(&out, 3, &images(3, 32));
    assert!(relative(&unfolded, &folded) < 1e-5, "{}", relative(&unfolded, &folded));
    assert_eq!(manifest(&out)["metrics"]["folded_batch_norms"], 0);
}

#[test]
fn a_manifest_says_where_the_network_is_from_and_what_it_reaches() {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    export(folder.path(), "");
    let manifest = manifest(&folder.path().join("out"));
    let metrics = &manifest["metrics"];
    assert_eq!((&metrics["opset"], &metrics["weights"]), (&18.into(), &"f32".into()));
    assert_eq!((&metrics["exported_from"], &metrics["data"]), (&"model.bpk".into(), &"digits".into()));
    assert_eq!(metrics["architecture"]["depth"], "resnet18");
    assert_eq!((&metrics["test_examples"], &metrics["folded_batch_norms"]), (&8.into(), &20.into()));
    assert_eq!(metrics["test_accuracy"], metrics["exported_test_accuracy"]);
    assert!(metrics["largest_difference"].as_f64().unwrap() < 1e-4, "{metrics}");
    assert_eq!(manifest["files"].as_array().unwrap().len(), 5);
    assert!(manifest["versions"]["burn"].is_string());
    let labels = fs::read_to_string(folder.path().join("out/labels.txt")).unwrap();
    assert_eq!(labels.lines().collect::<Vec<_>>(), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

#[test]
fn a_run_its_checkpoints_and_its_weights_need_no_further_options() {
    let place = RUN.path();
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(place.join("run/summary.json")).unwrap()).unwrap();
    let folder = folder();
    let from = |from: &Path, to: &str| {
        let args = format!("export --from {} --to {to}", from.display());
        let said = succeeds(folder.path(), &args);
        assert!(said.contains("resnet18 with the cifar stem, 10 classes"), "{said}");
        manifest(&folder.path().join(to))["metrics"].clone()
    };
    let run = from(&place.join("run"), "run");
    assert_eq!(run["parameters_sha256"], summary["parameters_sha256"]);
    // All 299 images, as the run's own test: Burn's accuracy comes out again.
    assert_eq!((&run["test_accuracy"], &run["test_examples"]), (&summary["test_accuracy"], &299.into()));
    let last = from(&place.join("run/checkpoints/step-2"), "last");
    assert_eq!(last["parameters_sha256"], summary["parameters_sha256"]);
    let first = from(&place.join("run/checkpoints/step-1"), "first");
    assert_ne!(first["parameters_sha256"], summary["parameters_sha256"]);
    assert_eq!(first["data"], "digits");
}

#[test]
fn a_checkpoint_that_left_its_run_still_knows_its_network() {
    let folder = folder();
    let moved = folder.path().join("step-2");
    fs::create_dir(&moved).unwrap();
    for name in entries(&RUN.path().join("run/checkpoints/step-2")) {
        fs::copy(RUN.path().join("run/checkpoints/step-2").join(&name), moved.join(&name)).unwrap();
    }
    succeeds(folder.path(), "export --from step-2 --to out --test-images 0");
    let metrics = &manifest(&folder.path().join("out"))["metrics"];
    assert_eq!((&metrics["architecture"]["depth"], &metrics["data"]), (&"resnet18".into(), &"digits".into()));
    assert!(metrics["test_accuracy"].is_null());
}

#[test]
fn a_run_in_mixed_precision_is_exported_in_f32() {
    let test = "a_run_in_mixed_precision_is_exported_in_f32";
    let Some(amp) = sibling("recipe-resnet-amp") else {
        return skip(test, "recipe-resnet-amp is not built: run the tests of the whole workspace");
    };
    let folder = folder();
    let trained = Command::new(amp)
        .args(
            "--out run --device cpu --model resnet18 --progress none --precision f16 --batch-size 4"
                .split(' '),
        )
        .args("--nproc-per-node 1 --max-steps 1".split(' '))
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    for from in ["run", "run/checkpoints/step-1"] {
        let args = format!("export --from {from} --to out --overwrite --test-images 24");
        succeeds(folder.path(), &args);
        let graph = proto(&folder.path().join("out")).graph.unwrap();
        assert!(graph.initializer.iter().all(|tensor| tensor.data_type != 10), "f16 in {from}");
    }
}

#[test]
fn weights_in_half_precision_are_exported_in_f32() {
    let folder = folder();
    let network = network(folder.path(), Depth::ResNet18, 10);
    let config = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar);
    let half = SaveOptions::default().with_dtype(SaveDType::F16);
    save_model(&config, &network, folder.path().join("model.bpk"), &half).unwrap();
    export(folder.path(), "");
    let exported = Source::open(folder.path().join("out/model.bpk"), &OpenOptions::default()).unwrap();
    assert!(exported.tensors().iter().all(|tensor| tensor.dtype().name() == "f32"));
}

#[test]
fn bare_weights_of_torchvision_classify_as_in_torchvision() {
    let Some(python) = python("bare_weights_of_torchvision_classify_as_in_torchvision") else { return };
    let folder = folder();
    let images = images(4, 64);
    let bytes: Vec<u8> = images.iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(folder.path().join("images"), bytes).unwrap();
    let script = "import json, numpy, torch, torchvision\n\
         torch.manual_seed(1)\n\
         model = torchvision.models.resnet18(num_classes=7)\n\
         for _ in range(3): model(torch.randn(8, 3, 64, 64))\n\
         model.eval()\n\
         torch.save(model.state_dict(), 'weights.pth')\n\
         images = torch.from_numpy(numpy.fromfile('images', dtype='<f4').reshape(4, 3, 64, 64))\n\
         print(json.dumps(model(images).tolist()))";
    let output = Command::new(python).args(["-c", script]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<Vec<f32>> = serde_json::from_slice(&output.stdout).unwrap();
    fs::write(folder.path().join("names.txt"), "a\nb\nc\nd\ne\nf\ng\n").unwrap();
    let said = succeeds(
        folder.path(),
        "export --from weights.pth --model resnet18 --image-size 64 --labels names.txt --to out",
    );
    assert!(said.contains("imagenet stem, 7 classes") && !said.contains("accuracy"), "{said}");
    let found = by_tract(&folder.path().join("out"), 4, &images);
    let expected = expected.concat();
    assert!(relative(&expected, &found) < 1e-4, "{}", relative(&expected, &found));
    let top1 = |logits: &[f32]| -> Vec<usize> {
        let best = |row: &[f32]| (0..7).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        logits.chunks(7).map(best).collect()
    };
    assert_eq!(top1(&found), top1(&expected));
    // ImageNet's, as torchvision documents them for its weights.
    let preprocess = fs::read_to_string(folder.path().join("out/preprocess.json")).unwrap();
    assert!(preprocess.contains("0.485") && preprocess.contains("\"size\": 73"), "{preprocess}");
}

#[test]
fn narrower_weights_make_the_file_smaller_and_their_accuracy_is_measured() {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    let bytes = |weights: &str| {
        let said = export(folder.path(), &format!("--weights {weights} --overwrite"));
        assert!(said.contains("accuracy on 8 test images"), "{said}");
        let metrics = manifest(&folder.path().join("out"))["metrics"].clone();
        assert_eq!(metrics["weights"], weights);
        assert!(metrics["exported_test_accuracy"].is_f64(), "{metrics}");
        // The other files keep what was trained.
        let kept =
            Source::open(folder.path().join("out/model.safetensors"), &OpenOptions::default()).unwrap();
        assert!(kept.tensors().iter().all(|tensor| tensor.dtype().name() == "f32"));
        fs::metadata(folder.path().join("out/model.onnx")).unwrap().len() as f64
    };
    let (f32, f16, int8) = (bytes("f32"), bytes("f16"), bytes("int8"));
    assert!((f16 / f32 - 0.5).abs() < 0.02 && (int8 / f32 - 0.25).abs() < 0.02, "{f32} {f16} {int8}");
}

#[test]
fn options_that_contradict_the_file_are_refused_with_both_sides() {
    let folder = folder();
    let path = folder.path();
    let network = network(path, Depth::ResNet18, 10);
    save(&network, path.join("bare"), &SaveOptions::default()).unwrap();
    let common = "--to out --image-size 32 --data digits";
    for (args, expected) in [
        ("--from model.bpk --num-classes 7", "it tells 10 classes apart, and --num-classes says 7"),
        ("--from model.bpk --model resnet34", "it is a resnet18, and --model says resnet34"),
        ("--from model.bpk --stem imagenet", "its stem is cifar, and --stem says imagenet"),
        (
            "--from bare --model resnet18 --num-classes 7",
            "it tells 10 classes apart, and --num-classes says 7",
        ),
        ("--from bare", "it holds weights and does not say of which network"),
    ] {
        let [_, cause, _] = refuses(path, &format!("export {args} {common}"), 2);
        assert_eq!(cause, expected, "{args}");
    }
    let output = recipe(path, &format!("export --from bare --model resnet34 {common}"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("bare is no resnet34 with 10 classes") && stderr.contains("layer1.2"),
        "{stderr}"
    );
    let [error, ..] = refuses(path, &format!("export --from bare --model resnet50 {common}"), 1);
    assert!(error.contains("is no resnet50"), "{error}");
    assert_eq!(entries(path), ["bare", "model.bpk"]);
}

#[test]
fn labels_and_images_for_other_classes_are_refused() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 7);
    fs::write(path.join("ten.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n").unwrap();
    fs::write(path.join("twice.txt"), "a\nb\nc\nd\ne\nf\na\n").unwrap();
    let refused = |args: &str| {
        refuses(path, &format!("export --from model.bpk --to out --image-size 32 {args}"), 2)[1].clone()
    };
    assert_eq!(refused("--labels ten.txt"), "10 names for 7 classes");
    assert_eq!(refused("--labels twice.txt"), "line 7 repeats the name \"a\"");
    assert_eq!(refused("--data digits"), "they have 10 classes, and the network tells 7 apart");
    assert_eq!(refused(""), "the names of its classes are not known");
    let [_, cause, remedy] = refuses(path, "export --from model.bpk --to out --data digits", 2);
    assert!(cause.contains("size of its images") && remedy.contains("--image-size 224"), "{cause} {remedy}");
    let [_, cause, _] =
        refuses(path, "export --from model.bpk --to out --image-size 32 --data folder:/nowhere", 1);
    assert!(cause.contains("/nowhere"), "{cause}");
    assert_eq!(entries(path), ["model.bpk", "ten.txt", "twice.txt"]);
}

struct WithNan;

impl ModuleMapper for WithNan {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.mul_scalar(f32::NAN))
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    let folder = folder();
    let config = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar);
    let mut network = config.init(&Device::flex()).materialize();
    network.layer2[1].bn1 = network.layer2[1].bn1.clone().map(&mut WithNan);
    save_model(&config, &network, folder.path().join("model.bpk"), &SaveOptions::default()).unwrap();
    let args = "export --from model.bpk --to out --data digits --image-size 32";
    let [_, cause, remedy] = refuses(folder.path(), args, 1);
    assert!(cause.starts_with("`layer2.1.bn1.gamma` holds NaN"), "{cause}");
    assert_eq!(remedy, "export an earlier checkpoint");
    assert_eq!(entries(folder.path()), ["model.bpk"]);
}

#[test]
fn a_difference_above_the_tolerance_leaves_nothing_behind() {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    let args = "export --from model.bpk --to out --data digits --image-size 32 --test-images 0 \
                --engine tract --weights int8 --tolerance 1e-7";
    let [error, cause, _] = refuses(folder.path(), args, 1);
    assert_eq!(error, "the exported file does not compute what the network does");
    assert!(cause.contains("tract") && cause.contains("1.0e-7"), "{cause}");
    assert_eq!(entries(folder.path()), ["model.bpk"]);
}
