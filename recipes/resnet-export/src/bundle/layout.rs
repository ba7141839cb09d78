//! Where the parts of a bundle lie.
//!
//! ```text
//! program | start mark | model.onnx | labels.txt | preprocess.json | manifest.json | trailer
//! ```
//!
//! The trailer, at the very end and of a fixed size, has the four lengths (u64, little-endian), the SHA-256 of these and of
//! the manifest, and a mark. The manifest has the hashes of the other files, so that nothing is hashed twice.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use recipe_common::{RecipeError, Result};
use sha2::{Digest, Sha256};

use super::{damaged, open};
use crate::package::DEPLOYED;

pub(super) const PARTS: usize = DEPLOYED.len();
const LENGTHS_BYTES: usize = 8 * PARTS;
const HASH_BYTES: usize = 32;
const TRAILER_BYTES: usize = LENGTHS_BYTES + HASH_BYTES + MARK_BYTES;
const MARK_BYTES: usize = 16;
const END_MARK: [u8; MARK_BYTES] = *b"burn-nccl bundle";

/// The parts of a program that has a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the program without its package.
    pub(super) program: u64,
    lengths: [u64; PARTS],
    sha256: [u8; HASH_BYTES],
}

impl Layout {
    /// For a package after `program` bytes of a program.
    pub(super) fn new(program: u64, lengths: [u64; PARTS], manifest: &[u8]) -> Self {
        Self { program, lengths, sha256: digest(lengths, manifest) }
    }

    /// Reads the end of a program; none where it has no package.
    pub(super) fn read(file: &File, path: &Path) -> Result<Option<Self>> {
        let failed = |error: std::io::Error| RecipeError::file("read", path, error);
        let size = file.metadata().map_err(failed)?.len();
        let mut trailer = [0; TRAILER_BYTES];
        let trailer_at = size.saturating_sub(TRAILER_BYTES as u64);
        // What is shorter has no mark at its end, and may be the beginning of a bundle all the same.
        if size >= TRAILER_BYTES as u64 {
            file.read_exact_at(&mut trailer, trailer_at).map_err(failed)?;
        }
        let (lengths, rest) = trailer.split_at(LENGTHS_BYTES);
        let (sha256, mark) = rest.split_at(HASH_BYTES);
        if mark != END_MARK {
            return match has_start(path).map_err(failed)? {
                true => Err(damaged(
                    path,
                    "it is cut off: the program has the start of a network and not its end",
                )),
                false => Ok(None),
            };
        }
        let mut words = lengths
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)));
        let lengths: [u64; PARTS] = std::array::from_fn(|_| words.next().unwrap_or_default());
        let altered = || {
            damaged(path, "the lengths of its files do not fit the program: bytes are missing or too many")
        };
        let mut program = trailer_at.checked_sub(MARK_BYTES as u64).ok_or_else(altered)?;
        for (length, (_, max)) in lengths.iter().zip(DEPLOYED) {
            program = program.checked_sub(*length).filter(|_| *length <= max).ok_or_else(altered)?;
        }
        let mut mark = [0; MARK_BYTES];
        file.read_exact_at(&mut mark, program).map_err(failed)?;
        if mark != start_mark() {
            return Err(altered());
        }
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(sha256);
        Ok(Some(Self { program, lengths, sha256: hash }))
    }

    /// Offset and length of each part.
    pub(super) fn parts(&self) -> [(u64, usize); PARTS] {
        let mut offset = self.program + MARK_BYTES as u64;
        self.lengths.map(|length| {
            let part = (offset, length as usize);
            offset += length;
            part
        })
    }

    /// Whether the manifest and the lengths are those that were written.
    pub(super) fn check_manifest(&self, manifest: &[u8], path: &Path) -> Result<()> {
        match digest(self.lengths, manifest) == self.sha256 {
            true => Ok(()),
            false => Err(damaged(path, "its manifest is altered: its SHA-256 is another")),
        }
    }

    /// The trailer.
    pub(super) fn trailer(&self) -> Vec<u8> {
        let lengths = self.lengths.into_iter().flat_map(u64::to_le_bytes);
        lengths.chain(self.sha256).chain(END_MARK).collect()
    }
}

fn digest(lengths: [u64; PARTS], manifest: &[u8]) -> [u8; HASH_BYTES] {
    let mut hash = Sha256::new();
    lengths.into_iter().for_each(|length| hash.update(length.to_le_bytes()));
    hash.update(manifest);
    hash.finalize().into()
}

/// The mark before the package. It is computed so that no program has it but in front of a package: by it a bundle is
/// known whose end is missing.
pub(super) fn start_mark() -> [u8; MARK_BYTES] {
    std::hint::black_box(END_MARK).map(|byte| !byte)
}

/// Whether the start mark is anywhere in the file.
fn has_start(path: &Path) -> std::io::Result<bool> {
    const BLOCK: usize = 1 << 20;
    let mut file = File::open(path)?;
    let mark = start_mark();
    let mut block = Vec::with_capacity(BLOCK + MARK_BYTES);
    loop {
        let before = block.len();
        if file.by_ref().take(BLOCK as u64).read_to_end(&mut block)? == 0 {
            return Ok(false);
        }
        if block.windows(MARK_BYTES).any(|window| window == mark) {
            return Ok(true);
        }
        // The mark may lie across two blocks.
        debug_assert!(before < MARK_BYTES);
        block.drain(..block.len().saturating_sub(MARK_BYTES - 1));
    }
}

/// This program's file, and its name for messages.
///
/// The file is the one that runs, even where another has taken its name meanwhile.
pub(super) fn program() -> Result<(File, PathBuf)> {
    let unknown = |error: std::io::Error| {
        RecipeError::failure(
            "cannot find the file of this program",
            error.to_string(),
            "start it by its full path",
        )
    };
    let path = std::env::current_exe().map_err(unknown)?;
    match File::open("/proc/self/exe") {
        Ok(file) => Ok((file, path)),
        Err(_) => Ok((open(&path)?, path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of 9 bytes with a package of 3, 2, 1 and 4 bytes.
    fn bundle() -> (Vec<u8>, Layout) {
        let layout = Layout::new(9, [3, 2, 1, 4], b"mani");
        let bytes = [b"programme".as_slice(), &start_mark(), b"modlapmani", &layout.trailer()].concat();
        (bytes, layout)
    }

    fn read(bytes: &[u8]) -> Result<Option<Layout>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, bytes).unwrap();
        Layout::read(&File::open(&path).unwrap(), &path)
    }

    #[test]
    fn a_bundle_is_read_back_and_its_parts_lie_where_they_were_written() {
        let (bytes, layout) = bundle();
        let found = read(&bytes).unwrap().unwrap();
        assert_eq!(found, layout);
        let parts = found.parts().map(|(offset, length)| &bytes[offset as usize..offset as usize + length]);
        assert_eq!(parts, [b"mod".as_slice(), b"la", b"p", b"mani"]);
        found.check_manifest(b"mani", Path::new("x")).unwrap();
        assert!(found.check_manifest(b"Mani", Path::new("x")).is_err());
    }

    #[test]
    fn a_program_without_a_package_has_none() {
        assert_eq!(read(b"").unwrap(), None);
        assert_eq!(read(&[7; 5000]).unwrap(), None);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(read(&own).unwrap(), None, "the start mark is in the program itself");
    }

    #[test]
    fn a_bundle_that_is_cut_off_or_altered_is_refused() {
        let (bytes, _) = bundle();
        for length in 9 + MARK_BYTES..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        let lengths = bytes.len() - TRAILER_BYTES;
        for at in lengths..lengths + LENGTHS_BYTES {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(read(&altered).is_err(), "length byte {at}");
        }
        // Bytes lost in the middle.
        let mut short = bytes.clone();
        short.remove(12 + MARK_BYTES);
        assert!(read(&short).is_err());
    }
}
