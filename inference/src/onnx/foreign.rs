//! Tells files of other kinds by their first bytes, since the remedy differs.

use super::{COPY, EXPORT, format};
use crate::Error;

const RENAMED: &str = "a model is not converted by renaming its file: export it to ONNX";
const PAGE: &str = "the address was that of a page: download the file itself";
const POINTER: &str = "run `git lfs pull`";
const UNPACK: &str = "unpack it";

const STARTS: [(&[u8], &str, &str); 12] = [
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file", POINTER),
    (b"PK\x03\x04", "it is a zip archive, as torch.save and Keras write", RENAMED),
    (b"\x80\x02", "it is a Python pickle, as torch.save writes", RENAMED),
    (b"\x80\x03", "it is a Python pickle", RENAMED),
    (b"\x80\x04", "it is a Python pickle", RENAMED),
    (b"\x80\x05", "it is a Python pickle", RENAMED),
    (b"NRUB", "it is a burnpack record", RENAMED),
    (b"\x89HDF", "it is an HDF5 file, as Keras writes", RENAMED),
    (b"\x1f\x8b", "it is compressed by gzip", UNPACK),
    (b"\x89PNG", "it is a PNG image", EXPORT),
    (b"\xff\xd8\xff", "it is a JPEG image", EXPORT),
    (b"{", "it is a JSON text", EXPORT),
];

/// The error for bytes that are surely something else.
pub(super) fn recognise(bytes: &[u8]) -> Option<Error> {
    if bytes.is_empty() {
        return Some(format("it is empty", COPY));
    }
    if let Some((_, reason, remedy)) = STARTS.iter().find(|(start, ..)| bytes.starts_with(start)) {
        return Some(format(*reason, remedy));
    }
    let at = |from: usize| bytes.get(from..from + 4);
    match (at(4), bytes.get(8)) {
        (Some(b"TFL3"), _) => return Some(format("it is a TensorFlow Lite model", RENAMED)),
        (Some(b"ORTM"), _) => return Some(format("it is in ONNX Runtime's own format", EXPORT)),
        // A length in 8 bytes, whose upper half is 0, before a JSON header.
        (Some(b"\0\0\0\0"), Some(b'{')) => return Some(format("it is a safetensors file", RENAMED)),
        _ => {}
    }
    let text = bytes.trim_ascii_start();
    text.starts_with(b"<").then(|| format("it is a web page or another text in HTML or XML", PAGE))
}
