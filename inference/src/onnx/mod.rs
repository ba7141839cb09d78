//! A checked ONNX file.

mod file;
mod foreign;
mod graph;
mod rename;
mod rewrite;
mod signature;
mod tensor;
mod values;
mod weight_type;
mod windows;
mod wire;

pub use file::Onnx;
pub use signature::Signature;
pub(crate) use values::{byte_values, f16_values, f32_values};
pub use weight_type::WeightType;

use crate::Error;

/// What to do where an exporter wrote what cannot be used.
const EXPORT: &str = "export the trained model to ONNX again, in evaluation mode";
/// What to do where bytes were lost.
const COPY: &str = "copy or download the file again and compare its size";

fn format(reason: impl Into<String>, remedy: &'static str) -> Error {
    Error::Format { reason: clipped(reason.into()), remedy }
}

/// Names come from the file and may be as long as it is; a message is for people.
pub(crate) fn clipped(mut text: String) -> String {
    const MAX_BYTES: usize = 400;
    if text.len() > MAX_BYTES {
        text.truncate(text.floor_char_boundary(MAX_BYTES));
        text.push_str("...");
    }
    text
}
