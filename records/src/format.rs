use std::path::Path;

use crate::source::{Located, locate, peek};
use crate::{Error, Result};

/// A format of weights that can be opened, told by what a file holds and never by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// What `torch.save` writes: a zip archive, before PyTorch 1.6 a stream of pickles, before 0.1.10 a tar archive.
    Pytorch,
    /// One safetensors file.
    Safetensors,
    /// Several safetensors files and the `model.safetensors.index.json` that lists their tensors, as Hugging Face has them.
    ShardedSafetensors,
    /// Burn's own format.
    Burnpack,
    /// A checkpoint folder with `model.bpk`, whose hash must be that of its manifest; or a folder of checkpoints or of a run,
    /// of which the newest counts that is complete so. A recipe's run that has ended has its `model.bpk`, which is newer.
    Checkpoint,
}

impl Format {
    /// Tells the format of a file, a compressed file or a folder.
    ///
    /// # Errors
    ///
    /// [`Error::File`] where it cannot be read; [`Error::UnknownFormat`], which names what it seems to be instead.
    pub fn detect(path: &Path) -> Result<Self> {
        Ok(match locate(path)? {
            Located::Checkpoint(_) => Self::Checkpoint,
            Located::Index(_) => Self::ShardedSafetensors,
            Located::File(file) => Self::of_file(&file)?.0,
        })
    }

    /// Its name in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "PyTorch",
            Self::Safetensors => "safetensors",
            Self::ShardedSafetensors => "sharded safetensors",
            Self::Burnpack => "burnpack",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// The format of a single file, and whether it is compressed.
    pub(crate) fn of_file(path: &Path) -> Result<(Self, bool)> {
        let (head, compressed) = peek(path)?;
        let format = of_head(&head)
            .ok_or_else(|| Error::UnknownFormat { path: path.into(), found: describe(&head, compressed) })?;
        Ok((format, compressed))
    }
}

/// How many bytes tell a format: a tar archive shows at 257.
pub(crate) const HEAD_BYTES: usize = 512;

/// Where a tar header says that it is one.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// `head` is the start of a file, at most [`HEAD_BYTES`].
fn of_head(head: &[u8]) -> Option<Format> {
    let header_bytes = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    // Before the pickle's first byte, which the low byte of a header's length may happen to equal.
    if header_bytes.is_some_and(|bytes| bytes <= MAX_HEADER_BYTES) && head.get(8) == Some(&b'{') {
        return Some(Format::Safetensors);
    }
    if head.starts_with(b"NRUB") {
        return Some(Format::Burnpack);
    }
    if head.starts_with(b"PK\x03\x04")
        || head.get(TAR_MAGIC.0..TAR_MAGIC.0 + TAR_MAGIC.1.len()) == Some(TAR_MAGIC.1)
    {
        return Some(Format::Pytorch);
    }
    if head.trim_ascii_start().starts_with(b"{") {
        return Some(Format::ShardedSafetensors);
    }
    // A pickle of protocol 2 and up, or the magic number of `torch.save` in the text of protocol 0.
    (matches!(head, [0x80, 0..=5, ..]) || head.starts_with(b"L1195470371460388013333"))
        .then_some(Format::Pytorch)
}

/// The longest JSON header of a safetensors file, as in the safetensors crate, and the largest index of shards: it lists
/// the same names.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What the text begins with that Git LFS leaves in place of a file that it has not fetched.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// What a file that is none of the formats seems to be.
fn describe(head: &[u8], compressed: bool) -> String {
    let known: [(&[u8], &str); 9] = [
        (LFS_POINTER, "it is a Git LFS pointer, and `git lfs pull` fetches the weights themselves"),
        (b"<", "it is a web page, so that the download needs another address or a login"),
        (b"\x89HDF", "it is HDF5, as Keras writes; convert it to safetensors"),
        (b"GGUF", "it is GGUF; convert it to safetensors"),
        (b"\x93NUMPY", "it is a NumPy array; save it as safetensors"),
        (b"\x1f\x8b", "it is compressed with gzip; unpack it first"),
        (b"\xfd7zXZ", "it is compressed with xz; unpack it first"),
        (b"BZh", "it is compressed with bzip2; unpack it first"),
        (b"\x08", "it may be ONNX, which burn-onnx imports"),
    ];
    let inside = if compressed { "inside zstd " } else { "" };
    match known.iter().find(|(magic, _)| head.trim_ascii_start().starts_with(magic)) {
        _ if head.is_empty() => format!("{inside}it is empty"),
        Some((_, what)) => format!("{inside}{what}"),
        None => format!("{inside}it starts with {:02x?}", &head[..head.len().min(8)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_length_that_looks_like_a_pickle_is_safetensors() {
        // 0x80 is the pickle opcode PROTO and the low byte of a header of 128 bytes.
        assert_eq!(of_head(b"\x80\0\0\0\0\0\0\0{\"a\""), Some(Format::Safetensors));
        assert_eq!(of_head(b"\x80\x02}q\0."), Some(Format::Pytorch));
    }

    #[test]
    fn a_json_object_is_an_index_and_other_text_is_nothing() {
        assert_eq!(of_head(b"  {\"weight_map\": {}}"), Some(Format::ShardedSafetensors));
        assert_eq!(of_head(b"hello, world"), None);
        assert_eq!(of_head(b""), None);
    }

    #[test]
    fn a_file_of_another_kind_is_named_with_the_way_out() {
        assert!(describe(b"version https://git-lfs.github.com/spec/v1", false).contains("git lfs pull"));
        assert!(describe(b"\n<!doctype html>", false).contains("web page"));
        assert_eq!(describe(b"", true), "inside zstd it is empty");
        assert_eq!(describe(&[1, 2], false), "it starts with [01, 02]");
    }
}
