//! Files of ours in the hands of PyTorch and of Python's safetensors.

use std::path::Path;
use std::process::Command;

use burn::tensor::{Device, Int, Tensor};
use burn_nccl_records::{Names, SaveDType, SaveFormat, SaveOptions, save};
use serde_json::Value;
use tempfile::tempdir;

use crate::saving::{net, quick};

/// What a Python program prints, as JSON; none without `$BURN_NCCL_PYTHON`.
fn python(test: &str, program: &str, argument: &Path) -> Option<Value> {
    let Some(python) = std::env::var_os("BURN_NCCL_PYTHON") else {
        crate::skip(test, "set BURN_NCCL_PYTHON to a Python with torch and safetensors");
        return None;
    };
    let output = Command::new(python).arg("-c").arg(program).arg(argument).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn torch() -> SaveOptions {
    quick().with_format(SaveFormat::Safetensors).with_names(Names::Torch)
}

const READ_FILE: &str = r#"
import json, sys
from safetensors.torch import load_file
state = load_file(sys.argv[1])
print(json.dumps({k: [str(v.dtype), list(v.shape), v.double().flatten().tolist()] for k, v in state.items()}))
"#;

/// Reads as Hugging Face's loaders do: the index, then each shard that it names.
const READ_SHARDS: &str = r#"
import json, os, sys
from safetensors import safe_open
index = json.load(open(os.path.join(sys.argv[1], "model.safetensors.index.json")))
found = {}
for name, file in index["weight_map"].items():
    with safe_open(os.path.join(sys.argv[1], file), framework="pt") as shard:
        value = shard.get_tensor(name)
        found[name] = [str(value.dtype), list(value.shape), value.double().flatten().tolist()]
print(json.dumps(found))
"#;

/// A network of the same fields, which must take every key and no other.
const FORWARD: &str = r#"
import json, sys, torch
from safetensors.torch import load_file
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 5, 3)
        self.norm = torch.nn.BatchNorm2d(5)
        self.fc = torch.nn.Linear(3, 4)
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("mask", torch.zeros(2, 2, dtype=torch.bool))
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
net = Net()
net.load_state_dict(load_file(sys.argv[1]), strict=True)
net.eval()
x = torch.arange(2 * 2 * 5 * 5).reshape(2, 2, 5, 5) / 50 - 1
y = net.fc(net.norm(net.conv(x)))
print(json.dumps({"y": y.flatten().tolist(), "steps": net.steps.tolist(), "mask": net.mask.tolist()}))
"#;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_holds_net(found: &Value, half: Option<&str>) {
    let net = net(1, &Device::flex());
    let weight: Vec<f32> = net.conv.weight.val().into_data().try_into_vec().unwrap();
    let [dtype, shape, values] = &found["conv.weight"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!(dtype, half.unwrap_or("torch.float32"));
    assert_eq!(shape, &serde_json::json!([5, 2, 3, 3]));
    let tolerance = if half.is_some() { 1e-3 } else { 1e-15 };
    let errors = numbers(values).into_iter().zip(&weight).map(|(a, b)| (a - f64::from(*b)).abs());
    assert!(errors.fold(0.0, f64::max) <= tolerance);
    assert_eq!(found["norm.weight"][0], "torch.float32");
    assert_eq!(found["fc.weight"][1], serde_json::json!([4, 3]));
    assert_eq!(found["mask"], serde_json::json!(["torch.bool", [2, 2], [1.0, 0.0, 0.0, 0.0]]));
    assert_eq!(numbers(&found["steps"][2])[1], -3.0);
    assert_eq!(found["empty"], serde_json::json!([half.unwrap_or("torch.float32"), [0, 3], []]));
    assert_eq!(found.as_object().unwrap().len(), 11);
}

#[test]
fn python_reads_the_same_values() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let types = [
        (SaveDType::Keep, None),
        (SaveDType::F16, Some("torch.float16")),
        (SaveDType::BF16, Some("torch.bfloat16")),
    ];
    for (stored, half) in types {
        save(&net(1, &Device::flex()), &path, &torch().with_dtype(stored)).unwrap();
        let Some(found) = python("python_reads_the_same_values", READ_FILE, &path) else { return };
        assert_holds_net(&found, half);
    }
}

#[test]
fn python_reads_the_same_values_from_shards() {
    let folder = tempdir().unwrap();
    save(&net(1, &Device::flex()), folder.path(), &torch().with_max_shard_bytes(100)).unwrap();
    if let Some(found) = python("python_reads_the_same_values_from_shards", READ_SHARDS, folder.path()) {
        assert_holds_net(&found, None);
    }
}

#[test]
fn a_network_of_pytorch_loads_a_file_strictly_and_computes_the_same() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let device = Device::flex();
    let net = net(2, &device);
    save(&net, &path, &torch()).unwrap();
    let test = "a_network_of_pytorch_loads_a_file_strictly_and_computes_the_same";
    let Some(found) = python(test, FORWARD, &path) else { return };
    assert_eq!(found["steps"], serde_json::json!([1_i64 << 40, -3, 2]));
    assert_eq!(found["mask"], serde_json::json!([[true, false], [false, true]]));

    let x = Tensor::<1, Int>::arange(0..100, &device).float().reshape([2, 2, 5, 5]) / 50.0 - 1.0;
    let y = net.fc.forward(net.norm.forward(net.conv.forward(x)));
    let ours: Vec<f32> = y.into_data().try_into_vec().unwrap();
    let theirs = numbers(&found["y"]);
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!((f64::from(*ours) - theirs).abs() < 1e-5, "{ours} against {theirs}");
    }
}
