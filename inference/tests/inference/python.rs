//! What is written is a file for the tools of ONNX themselves.

use std::process::Command;

use burn_nccl_inference::{Onnx, WeightType};

use crate::common::{difference, logits, python, skip};
use crate::testing::Net;

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
