//! The built recipe, run as a user runs it.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn::store::burn_pack::Tensor;
use burn::tensor::{Bytes, DType, Device, TensorData, f16};
use burn_nccl_models::{Depth, ResNetConfig, Stem};
use burn_nccl_records::{
    Names, OpenOptions, SaveFormat, SaveOptions, Source, load_model, save, save_model, save_tensors,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A skip is said on the terminal even where the test harness keeps the output of tests that pass.
fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

fn recipe<A: AsRef<OsStr>>(folder: &Path, args: &[A]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recipe-records")).args(args).current_dir(folder).output().unwrap()
}

/// What it prints where it succeeds.
fn succeeds(folder: &Path, args: &str) -> String {
    let output = recipe(folder, &args.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Its error, of the first cause's first line and the remedy, where it ends with this exit code.
fn refuses(folder: &Path, args: &str, exit_code: i32) -> [String; 3] {
    let output = recipe(folder, &args.split_whitespace().collect::<Vec<_>>());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit_code), "{args}: {stderr}");
    ["error: ", "cause: ", "help:  "].map(|label| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("{args}: no {label:?} in {stderr}")).to_owned()
    })
}

fn tensor(name: &str, shape: &[usize], id: Option<u64>) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|index| (index as f32 * 0.7).sin()).collect();
    Tensor::new(name.into(), DType::F32, shape.to_vec(), id, Bytes::from_elems(values))
}

/// Two tensors of a network nobody knows, with PyTorch's names and `note` beside them.
fn small(folder: &Path) -> PathBuf {
    let options = SaveOptions::default()
        .with_format(SaveFormat::Safetensors)
        .with_names(Names::Torch)
        .with_metadata("note", "a \u{1b}[31mred\u{1b}[0m one");
    let file = folder.join("small.safetensors");
    save_tensors(
        vec![tensor("proj.weight", &[30, 20], None), tensor("proj.bias", &[30], None)],
        &file,
        &options,
    )
    .unwrap();
    file
}

fn open(path: impl AsRef<Path>) -> Source {
    Source::open(path, &OpenOptions::default()).unwrap()
}

fn data(path: impl AsRef<Path>, name: &str) -> TensorData {
    let source = open(path);
    source.tensor(name).unwrap_or_else(|| panic!("no `{name}`")).data().unwrap()
}

fn names(path: impl AsRef<Path>) -> Vec<String> {
    open(path).tensors().iter().map(|tensor| tensor.name().to_owned()).collect()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn show_prints_what_a_file_holds_and_no_control_characters() {
    let folder = folder();
    let bytes = small(folder.path()).metadata().unwrap().len();
    let shown = succeeds(folder.path(), "show small.safetensors");
    let expected = format!(
        "small.safetensors: safetensors, {:.1} kB, 2 tensors with 630 values\n\n\
         burn-nccl.names  torch\n\
         format           pt\n\
         note             a \\u{{1b}}[31mred\\u{{1b}}[0m one\n\n\
         proj.bias    f32  [30]      120 B\n\
         proj.weight  f32  [30, 20]  2.4 kB\n",
        bytes as f64 / 1000.0
    );
    assert_eq!(shown, expected);
}

#[test]
fn show_as_json_has_every_figure() {
    let folder = folder();
    let bytes = small(folder.path()).metadata().unwrap().len();
    let shown: Value =
        serde_json::from_str(&succeeds(folder.path(), "show small.safetensors --json")).unwrap();
    assert_eq!(shown["format"], "safetensors");
    assert_eq!(
        (&shown["bytes"], &shown["values"], &shown["compressed"]),
        (&json!(bytes), &json!(630), &json!(false))
    );
    assert_eq!(
        shown["tensors"][1],
        json!({ "name": "proj.weight", "dtype": "f32", "shape": [30, 20], "bytes": 2400 })
    );
    assert_eq!(shown["metadata"]["format"], "pt");
}

#[test]
fn show_names_what_is_no_file_of_weights() {
    let folder = folder();
    fs::write(folder.path().join("page.pth"), "<!doctype html>").unwrap();
    let [error, cause, _] = refuses(folder.path(), "show page.pth", 1);
    assert_eq!(error, "cannot read page.pth");
    assert!(cause.contains("web page"), "{cause}");
    let [error, cause, remedy] = refuses(folder.path(), "show nothing.pth", 1);
    assert_eq!(error, "cannot read nothing.pth");
    assert!(cause.contains("No such file") && remedy.contains("exists"), "{cause} {remedy}");
}

#[test]
fn verify_lists_what_is_missing_altered_and_short() {
    let folder = folder();
    let path = folder.path();
    small(path);
    fs::create_dir(path.join("logs")).unwrap();
    for (name, text) in
        [("notes.txt", "seen"), ("logs/rank-0.log", "started"), (".hidden", "x"), ("kept.txt", "kept")]
    {
        fs::write(path.join(name), text).unwrap();
    }
    let wrote = succeeds(path, "manifest .");
    assert!(wrote.contains("4 files") && wrote.contains("2 tensors"), "{wrote}");
    let manifest: Value = serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap();
    let described: Vec<_> = manifest["files"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
    assert_eq!(described, ["kept.txt", "logs/rank-0.log", "notes.txt", "small.safetensors"]);
    // `printf seen | sha256sum`
    let sha256 = "7208794c984ea1c75d13877c7427336fe98722c41a056eeee4f37360ec367123";
    assert_eq!(manifest["files"][2]["sha256"], sha256);
    assert_eq!(
        manifest["tensors"][1],
        json!({ "file": "small.safetensors", "name": "proj.weight", "shape": [30, 20], "dtype": "f32" })
    );
    assert!(succeeds(path, "verify .").contains("4 files"));
    assert!(succeeds(path, "verify manifest.json").contains("4 files"));

    fs::write(path.join("notes.txt"), "seem").unwrap();
    fs::remove_file(path.join("logs/rank-0.log")).unwrap();
    let whole = fs::read(path.join("small.safetensors")).unwrap();
    fs::write(path.join("small.safetensors"), &whole[..whole.len() - 1]).unwrap();
    let output = recipe(path, &["verify", "."]);
    let listed = String::from_utf8(output.stdout).unwrap();
    let short = format!("small.safetensors: short, {} of {} bytes", whole.len() - 1, whole.len());
    assert_eq!(
        listed.lines().collect::<Vec<_>>(),
        ["logs/rank-0.log: missing", "notes.txt: altered, its SHA-256 is another", &short]
    );
    let [_, cause, _] = refuses(path, "verify .", 1);
    assert_eq!(cause, "3 of 4 files differ, as listed");
}

#[test]
fn verify_tells_a_pointer_of_git_lfs_from_a_damaged_file() {
    let folder = folder();
    fs::write(folder.path().join("model.bin"), vec![7; 1000]).unwrap();
    succeeds(folder.path(), "manifest model.bin");
    fs::write(
        folder.path().join("model.bin"),
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1000\n",
    )
    .unwrap();
    let [_, _, remedy] = refuses(folder.path(), "verify .", 1);
    assert!(remedy.contains("git lfs pull"), "{remedy}");
}

#[test]
fn a_manifest_keeps_metrics_and_is_not_replaced_silently() {
    let folder = folder();
    let path = folder.path();
    small(path);
    fs::write(path.join("summary.json"), r#"{"test_accuracy": 0.9, "recipe": "resnet-single", "steps": 12}"#)
        .unwrap();
    succeeds(path, "manifest . --metric top1=0.761 --metric data=digits");
    let read =
        || -> Value { serde_json::from_slice(&fs::read(path.join("manifest.json")).unwrap()).unwrap() };
    assert_eq!(
        read()["metrics"],
        json!({ "test_accuracy": 0.9, "steps": 12, "top1": 0.761, "data": "digits" })
    );
    let [_, cause, remedy] = refuses(path, "manifest .", 2);
    assert!(cause.contains("already") && remedy.contains("--overwrite"), "{cause} {remedy}");
    succeeds(path, "manifest summary.json --overwrite");
    assert_eq!(read()["files"].as_array().unwrap().len(), 1);
    let [_, cause, _] = refuses(path, "manifest . --metric 0.5 --overwrite", 2);
    assert!(cause.contains("has no name"), "{cause}");
}

#[test]
fn a_manifest_describes_only_files_of_one_folder() {
    let folder = folder();
    small(folder.path());
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/a"), "a").unwrap();
    let [_, cause, _] = refuses(folder.path(), "manifest small.safetensors other/a", 2);
    assert!(cause.contains("not a file of"), "{cause}");
    refuses(folder.path(), "manifest missing.bpk", 2);
    let [error, _, remedy] = refuses(folder.path(), "verify other", 2);
    assert!(
        error.contains("cannot verify") && remedy.contains("recipe-records manifest"),
        "{error} {remedy}"
    );
}

#[test]
fn a_conversion_without_a_network_keeps_names_metadata_and_values() {
    let folder = folder();
    let path = folder.path();
    small(path);
    let told = succeeds(path, "convert small.safetensors half.safetensors --dtype f16 --compress zstd:19");
    assert!(told.contains("largest rounding error"), "{told}");
    succeeds(path, "convert half.safetensors full.safetensors --dtype f32");
    let half = open(path.join("half.safetensors"));
    assert!(half.is_compressed());
    assert_eq!((half.tensors()[0].dtype(), half.tensors()[1].dtype()), (DType::F32, DType::F16));
    assert_eq!(open(path.join("full.safetensors")).metadata()["note"], "a \u{1b}[31mred\u{1b}[0m one");

    let before = data(path.join("small.safetensors"), "proj.weight").try_to_vec::<f32>().unwrap();
    let rounded: Vec<f32> = before.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
    let after = data(path.join("full.safetensors"), "proj.weight");
    assert_eq!((after.dtype(), after.try_to_vec::<f32>().unwrap()), (DType::F32, rounded));
}

#[test]
fn shards_are_a_folder_that_every_command_reads() {
    let folder = folder();
    let path = folder.path();
    let file = path.join("large.safetensors");
    let options = SaveOptions::default().with_format(SaveFormat::Safetensors).with_names(Names::Torch);
    let tensors = ["a", "b", "c"].map(|name| tensor(name, &[400, 500], None));
    save_tensors(tensors.to_vec(), &file, &options).unwrap();
    succeeds(path, "convert large.safetensors shards --shard-mb 1");
    assert_eq!(fs::read_dir(path.join("shards")).unwrap().count(), 4);
    assert!(succeeds(path, "show shards").starts_with("shards: sharded safetensors"));
    succeeds(path, "convert shards/model.safetensors.index.json whole.safetensors");
    assert_eq!(data(path.join("whole.safetensors"), "b"), data(&file, "b"));
    succeeds(path, "manifest shards");
    assert!(succeeds(path, "verify shards").contains("4 files"));
}

#[test]
fn burns_own_files_keep_the_identity_of_their_parameters() {
    let folder = folder();
    let file = folder.path().join("a.bpk");
    save_tensors(vec![tensor("weight", &[4, 4], Some(77))], &file, &SaveOptions::default()).unwrap();
    succeeds(folder.path(), "convert a.bpk b.bpk --dtype bf16");
    let converted = open(folder.path().join("b.bpk"));
    assert_eq!((converted.tensors()[0].param_id(), converted.tensors()[0].dtype()), (Some(77), DType::BF16));
    let [_, cause, _] = refuses(folder.path(), "convert a.bpk shards --to bpk --shard-mb 1", 2);
    assert!(cause.contains("shards need the safetensors format"), "{cause}");
}

#[test]
fn a_conversion_that_needs_the_network_is_refused_with_the_remedy() {
    let folder = folder();
    let path = folder.path();
    small(path);
    let [_, cause, remedy] = refuses(path, "convert small.safetensors small.bpk", 2);
    assert!(cause.contains("PyTorch's names") && remedy.contains("--model"), "{cause} {remedy}");
    save_tensors(vec![tensor("a.gamma", &[4], None)], path.join("a.bpk"), &SaveOptions::default()).unwrap();
    let [_, cause, remedy] = refuses(path, "convert a.bpk a.safetensors --to torch", 2);
    assert!(cause.contains("Burn's names") && remedy.contains("--model"), "{cause} {remedy}");
    // Names stay, so nobody has to know the network.
    succeeds(path, "convert a.bpk a.safetensors");
    assert_eq!(names(path.join("a.safetensors")), ["a.gamma"]);
    // It has no classifier whose outputs could be counted, and is another network altogether.
    let [_, cause, remedy] = refuses(path, "convert small.safetensors small.bpk --model resnet18", 2);
    assert!(cause.contains("fc.bias") && remedy.contains("--classes"), "{cause} {remedy}");
    let command = "convert small.safetensors small.bpk --model resnet18 --classes 9 --stem cifar";
    let [error, cause, remedy] = refuses(path, command, 1);
    assert_eq!(error, "small.safetensors is not a resnet18 with 9 classes");
    assert!(
        cause.starts_with("0 of 102 parameters match") && remedy.contains("check --model"),
        "{cause} {remedy}"
    );
    assert!(!path.join("small.bpk").exists());
}

#[test]
fn options_that_cannot_be_meant_are_refused_before_anything_is_written() {
    let folder = folder();
    let path = folder.path();
    small(path);
    let refused = |options: &str| refuses(path, &format!("convert small.safetensors new {options}"), 2);
    let [_, cause, remedy] = refused("");
    assert!(cause.contains("extension") && remedy.contains("--to bpk"), "{cause} {remedy}");
    for (options, text) in [
        ("--to torch --compress gzip", "no compression"),
        ("--to torch --compress zstd:99", "no level 99"),
        ("--to torch --shard-mb 0", "--shard-mb"),
        ("--to torch --dtype f8", "not one of its values"),
        ("--to pth", "not one of its values"),
        ("--to torch --classes 10", "--model"),
        ("--to torch --model vgg16", "unknown model `vgg16`"),
        ("--to torch --model resnet18 --stem cifar --classes 99999999999", "num_classes"),
    ] {
        let [_, cause, _] = refused(options);
        assert!(cause.contains(text), "{options}: {cause}");
    }
    assert!(!path.join("new").exists());
    let [_, cause, remedy] = refuses(path, "convert small.safetensors small.safetensors --dtype f16", 2);
    assert!(cause.contains("exists already") && remedy.contains("--overwrite"), "{cause} {remedy}");
    // Onto itself: the old file is mapped until the new one takes its name.
    succeeds(path, "convert small.safetensors small.safetensors --dtype f16 --overwrite");
    assert_eq!(data(path.join("small.safetensors"), "proj.weight").dtype(), DType::F16);
}

#[test]
fn a_value_too_large_for_f16_is_an_error_that_leaves_no_file() {
    let folder = folder();
    let large = Tensor::new("w".into(), DType::F32, vec![1, 2], None, Bytes::from_elems(vec![1e6_f32, 1.0]));
    save_tensors(vec![large], folder.path().join("a.bpk"), &SaveOptions::default()).unwrap();
    let [_, cause, remedy] = refuses(folder.path(), "convert a.bpk b.bpk --dtype f16", 1);
    assert!(cause.contains("1e6") && remedy.contains("--dtype bf16"), "{cause} {remedy}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A ResNet-18 with 3 classes for small images.
fn network() -> ResNetConfig {
    ResNetConfig::new(Depth::ResNet18, 3).with_stem(Stem::Cifar)
}

#[test]
fn names_are_translated_by_the_network_that_a_file_describes_and_back_to_the_same_bits() {
    let folder = folder();
    let path = folder.path();
    let model = network().init(&Device::flex());
    save_model(&network(), &model, path.join("a.bpk"), &SaveOptions::default()).unwrap();
    succeeds(path, "convert a.bpk torch.safetensors --to torch");
    let weight = data(path.join("torch.safetensors"), "fc.weight");
    assert_eq!(&weight.shape()[..], [3, 512]);
    let found = names(path.join("torch.safetensors"));
    assert!(
        found.contains(&"layer1.0.bn1.weight".into()) && !found.iter().any(|name| name.ends_with("gamma"))
    );

    succeeds(path, "convert torch.safetensors b.bpk");
    let (config, _) = load_model::<ResNetConfig>(path.join("b.bpk"), &Device::flex()).unwrap();
    assert_eq!(config, network());
    let (a, b) = (open(path.join("a.bpk")), open(path.join("b.bpk")));
    for (a, b) in a.tensors().iter().zip(b.tensors()) {
        assert_eq!((a.name(), a.data().unwrap()), (b.name(), b.data().unwrap()));
    }
}

#[test]
fn the_settings_of_a_run_tell_the_network_of_its_weights() {
    let folder = folder();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("config.json"), r#"{"model": "resnet18", "stem": "cifar", "epochs": 2}"#).unwrap();
    save(&network().init(&Device::flex()), run.join("model.bpk"), &SaveOptions::default()).unwrap();
    for (from, to) in [("run", "a"), ("run/model.bpk", "b")] {
        succeeds(folder.path(), &format!("convert {from} {to}.safetensors --to torch"));
    }
    let weight = |file: &str| data(folder.path().join(file), "fc.weight");
    assert_eq!(&weight("a.safetensors").shape()[..], [3, 512]);
    assert_eq!(weight("a.safetensors"), weight("b.safetensors"));
    // What is not the network is copied all the same.
    save_tensors(vec![tensor("momentum", &[2], None)], run.join("other.bpk"), &SaveOptions::default())
        .unwrap();
    succeeds(folder.path(), "convert run/other.bpk other.safetensors");
}

const MAKE: &str = "
import sys, torch, torchvision
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=7)
for name, buffer in model.named_buffers():
    if 'running' in name:
        buffer.copy_(torch.rand_like(buffer) + 0.5)
state = {'module.' + name: value for name, value in model.state_dict().items()}
torch.save({'epoch': 3, 'model': state, 'optimizer': {}}, sys.argv[1])
";

const COMPARE: &str = "
import sys, torch, torchvision
from safetensors.torch import load_file
state = {name.removeprefix('module.'): value for name, value in torch.load(sys.argv[1])['model'].items()}
for file in sys.argv[2:]:
    model = torchvision.models.resnet18(num_classes=7)
    model.load_state_dict(load_file(file), strict=True)
    for name, value in model.state_dict().items():
        assert 'num_batches' in name or torch.equal(value, state[name]), (file, name)
print('equal')
";

#[test]
fn a_checkpoint_of_pytorch_comes_back_into_torchvision_bit_for_bit() {
    let Some(python) = std::env::var_os("BURN_NCCL_PYTHON") else {
        skip(
            "a_checkpoint_of_pytorch_comes_back_into_torchvision_bit_for_bit",
            "set BURN_NCCL_PYTHON to a Python with torchvision",
        );
        return;
    };
    let folder = folder();
    let path = folder.path();
    let run = |program: &str, files: &[&str]| {
        let output =
            Command::new(&python).args(["-c", program]).args(files).current_dir(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(MAKE, &["ddp.pth"]);
    succeeds(path, "convert ddp.pth a.bpk --model resnet18");
    succeeds(path, "convert a.bpk b.safetensors");
    succeeds(path, "convert b.safetensors c.safetensors --to torch");
    succeeds(path, "convert ddp.pth d.safetensors --to torch");
    succeeds(path, "convert ddp.pth e.safetensors --to torch --model resnet18 --classes 7 --stem imagenet");
    assert_eq!(run(COMPARE, &["ddp.pth", "c.safetensors", "d.safetensors", "e.safetensors"]), "equal\n");
}

#[test]
fn lfs_tracks_weights_and_leaves_the_users_lines() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join(".gitattributes"), "*.png binary\n").unwrap();
    assert!(succeeds(path, "lfs").contains("*.bpk, *.safetensors"));
    let text = fs::read_to_string(path.join(".gitattributes")).unwrap();
    let lines = succeeds(path, "lfs --print");
    assert_eq!(text, format!("*.png binary\n{lines}"));
    assert!(succeeds(path, "lfs .").contains("has them all"));
    assert_eq!(fs::read_to_string(path.join(".gitattributes")).unwrap(), text);
    let [_, cause, _] = refuses(path, "lfs nowhere", 2);
    assert!(cause.contains("no such folder"), "{cause}");

    let git = |args: &[&str]| Command::new("git").args(args).current_dir(path).output();
    match git(&["init", "--quiet"]) {
        Err(_) => skip("what_git_makes_of_the_attributes", "install git"),
        Ok(_) => {
            let output = git(&["check-attr", "filter", "a/model.bpk", "manifest.json"]).unwrap();
            let found = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(found, "a/model.bpk: filter: lfs\nmanifest.json: filter: unspecified\n");
        }
    }
}

#[test]
fn without_a_command_the_commands_are_listed() {
    let output = recipe(Path::new("."), &[] as &[&str]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        ["show", "manifest", "verify", "convert", "lfs"].iter().all(|command| stderr.contains(command)),
        "{stderr}"
    );
    let [_, cause, _] = refuses(Path::new("."), "show", 2);
    assert_eq!(cause, "the following required arguments were not provided: <PATH>");
    let [_, cause, remedy] = refuses(Path::new("."), "shwo x", 2);
    assert!(cause.contains("shwo") && remedy.contains("show"), "{cause} {remedy}");
}
