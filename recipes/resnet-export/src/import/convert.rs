//! Code and weights from a checked network, or one error.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use burn_nccl_inference::Onnx;
use burn_onnx::{LoadStrategy, ModelGen};
use recipe_common::output::harmless;

use super::batch_norm::TrainableBatchNorm;
use super::weights::with_fixed_identifiers;
use crate::panic_text::panic_text;

/// Characters of a cause, which can be a whole node in Rust's notation.
const MAX_CAUSE: usize = 400;

const REMEDY: &str = "replace that operation in the network, or export it with the options that --help shows";

/// What becomes of a network.
pub(super) struct Generated {
    /// The module's source.
    pub(super) code: String,
    /// Its weights, as Burn's file has them.
    pub(super) weights: Vec<u8>,
}

/// Converts `onnx`, read from `model`, into the module `name`; an error is a cause and a remedy.
///
/// burn-onnx reads a file and writes files, all in a folder of its own here. The network that it reads is the one that
/// has been checked, whatever becomes of `model` meanwhile.
pub(super) fn convert(onnx: &Onnx, model: &Path, name: &str) -> Result<Generated, (String, String)> {
    let disk = |error: std::io::Error| {
        (error.to_string(), "check that the folder for temporary files is writable and has space".into())
    };
    let folder = tempfile::tempdir().map_err(disk)?;
    let file = |extension| folder.path().join(name).with_extension(extension);
    let input = file("onnx");
    let bytes = onnx.to_bytes();
    fs::write(&input, &bytes).map_err(disk)?;
    let (Some(from), Some(to)) = (input.to_str(), folder.path().to_str()) else {
        return Err((
            "the folder for temporary files has no Unicode name".into(),
            "set TMPDIR to another".into(),
        ));
    };
    let shown = model.display().to_string();
    // Not `ModelGen::new`, which would log all of its work to the standard output and report panics there.
    without_panic(|| {
        ModelGen::default()
            .input(from)
            .out_dir(to)
            .load_strategy(LoadStrategy::Bytes)
            .register_op_override(TrainableBatchNorm)
            .run_from_cli();
    })
    .map_err(|panic| (one_line(&panic.replace(from, &shown)), REMEDY.into()))?;
    let code = fs::read_to_string(file("rs")).map_err(disk)?;
    let fixed = file("fixed.bpk");
    with_fixed_identifiers(&file("bpk"), &fixed, &bytes)
        .map_err(|error| (error.to_string(), "check that the folder for temporary files has space".into()))?;
    let weights = fs::read(fixed).map_err(disk)?;
    Ok(Generated { code: with_origin(&code, from, model), weights })
}

/// Runs `work`, whose errors are panics, and returns a panic's text.
fn without_panic(work: impl FnOnce()) -> Result<(), String> {
    // The reports of the panic, one with a backtrace, would stand before the error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    outcome.map_err(|panic| panic_text(panic.as_ref()).unwrap_or("burn-onnx does not say why").to_owned())
}

/// One line that moves no cursor, without the lines that speak to those who write a build script.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("Register hooks via"));
    let line = lines.collect::<Vec<_>>().join(" ");
    let mut shown = harmless(&line.chars().take(MAX_CAUSE).collect::<String>());
    if line.chars().count() > MAX_CAUSE {
        shown.push_str("...");
    }
    shown
}

/// The code with its first line's path in the temporary folder replaced, so that it is the same wherever it is made.
fn with_origin(code: &str, input: &str, model: &Path) -> String {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let origin = format!("{name:?} by `recipe-resnet-export import`, with burn-onnx");
    code.replacen(&format!("{input:?} by burn-onnx"), &origin, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_text() {
        assert_eq!(without_panic(|| panic!("no {}", "Celu")), Err("no Celu".into()));
        assert_eq!(without_panic(|| panic!("plain")), Err("plain".into()));
        assert_eq!(without_panic(|| panic::panic_any(7)), Err("burn-onnx does not say why".into()));
        assert_eq!(without_panic(|| ()), Ok(()));
    }

    #[test]
    fn a_cause_is_one_short_line_without_control_characters() {
        let text = "2 custom ops:\n  - a::B\u{1b}[31m used\nRegister hooks via ModelGen::register_custom_op.";
        assert_eq!(one_line(text), "2 custom ops: - a::B\\u{1b}[31m used");
        assert_eq!(one_line(&"x".repeat(500)).len(), MAX_CAUSE + 3);
    }

    #[test]
    fn the_code_names_the_file_and_no_folder() {
        let code = "// Generated from ONNX \"/tmp/x1/net.onnx\" by burn-onnx\nextern crate alloc;\n";
        let expected = "// Generated from ONNX \"their net.onnx\" by `recipe-resnet-export import`, with burn-onnx\n\
                        extern crate alloc;\n";
        assert_eq!(with_origin(code, "/tmp/x1/net.onnx", Path::new("a/their net.onnx")), expected);
    }
}
