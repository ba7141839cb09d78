//! What is written is a file for the tools of ONNX themselves.

use std::process::Command;

use burn_nccl_inference::{Onnx, WeightType};

use crate::common::{difference, logits, python, skip};
use crate::testing::Net;

/// Writes a network of PyTorch with its normalisations, then its images and what it computes of them.
///
/// Two normalisations have equal statistics, for which the exporter writes a second name.
const EXPORT: &str = "
import sys
try:
    import onnx, torch
except ImportError as error:
    print('lacks', error); sys.exit()
torch.manual_seed(7)
nn = torch.nn
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU(),
    nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
for norm in (net[1], net[7]):
    norm.running_mean.normal_(); norm.running_var.uniform_(0.2, 3); norm.weight.data.normal_(); norm.bias.data.normal_()
for name in ('running_mean', 'running_var'):
    getattr(net[4], name).copy_(getattr(net[1], name))
net.eval()
images = torch.randn(3, 3, 16, 16)
torch.onnx.export(net, images, sys.argv[1], dynamo=False, training=torch.onnx.TrainingMode.PRESERVE,
    do_constant_folding=False, opset_version=17, input_names=['input'], output_names=['logits'],
    dynamic_axes={'input': {0: 'batch'}, 'logits': {0: 'batch'}})
images.numpy().astype('<f4').tofile(sys.argv[2])
print(*net(images).flatten().tolist())
";

#[test]
fn a_network_of_pytorch_keeps_its_logits_when_its_normalisations_are_folded() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [file, images] = ["model.onnx", "images"].map(|name| folder.path().join(name));
    let output = Command::new(&python).args(["-c", EXPORT]).args([&file, &images]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    if said.starts_with("lacks") {
        return skip(said.trim());
    }
    let expected: Vec<f32> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let bytes = std::fs::read(images).unwrap();
    let images: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let mut onnx = Onnx::open(&file).unwrap();
    assert_eq!(onnx.fold_batch_norms().unwrap(), 3);
    let difference = difference(&expected, &logits(&onnx, 3, &images));
    assert!(difference <= 1e-5, "{difference}");
}

/// Checks a file with onnx.checker, and runs it with onnxruntime.
const SCRIPT: &str = "
import sys
try:
    import numpy, onnx, onnxruntime
except ImportError as error:
    print('lacks', error); sys.exit()
onnx.checker.check_model(sys.argv[1], full_check=True)
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
images = numpy.fromfile(sys.argv[2], dtype='<f4').reshape(-1, 3, 16, 16)
logits, = session.run(None, {session.get_inputs()[0].name: images})
print(*logits.reshape(-1).tolist())
";

#[test]
fn the_checker_of_onnx_and_onnxruntime_take_every_file_that_is_written() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    for opset in [13, 18] {
        let mut net = Net::residual(3, 10);
        net.opset = opset;
        let images = net.images(3, 16, 16);
        let values = folder.path().join("images");
        std::fs::write(&values, images.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
            .unwrap();
        for (fold, weights) in
            WeightType::ALL.into_iter().flat_map(|weights| [(false, weights), (true, weights)])
        {
            let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
            if fold {
                onnx.fold_batch_norms().unwrap();
            }
            onnx.set_weights(weights).unwrap();
            let file = folder.path().join("model.onnx");
            std::fs::write(&file, onnx.to_bytes()).unwrap();
            let output = Command::new(&python).args(["-c", SCRIPT]).args([&file, &values]).output().unwrap();
            assert!(output.status.success(), "{fold} {weights}: {}", String::from_utf8_lossy(&output.stderr));
            let said = String::from_utf8(output.stdout).unwrap();
            if said.starts_with("lacks") {
                return skip(said.trim());
            }
            let found: Vec<f32> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
            let difference = difference(&logits(&onnx, 3, &images), &found);
            assert!(difference <= 1e-5, "{fold} {weights}: {difference}");
        }
    }
}
