//! Python's programs.

use std::io::Write;

use tempfile::NamedTempFile;

pub(super) const ONNXRUNTIME: &str = "onnxruntime";

/// What a network is run by from Python: ONNX Runtime, PyTorch itself, and PyTorch's compiled form, TorchScript.
pub(super) const PROGRAMS: [&str; 3] = [ONNXRUNTIME, "torch", "torchscript"];

/// The script that speaks as `bench-worker` does, in a file for as long as this lives.
pub(super) fn script() -> std::io::Result<NamedTempFile> {
    let mut script = tempfile::Builder::new().suffix(".py").tempfile()?;
    script.write_all(include_bytes!("peer.py"))?;
    Ok(script)
}
