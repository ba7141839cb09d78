//! Which CUDA a library of NCCL was built for: the text that it prints when it starts says so, and is a constant in it.
//!
//! NCCL has no function that tells, and by the time it fails for it the other ranks wait.

use std::{
    fmt,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cuda {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The longest constants of a library that are looked through. The device code, hundreds of megabytes, is elsewhere.
const MAX_CONSTANTS: u64 = 64 << 20;

/// Reads it from the constants of a library, a 64-bit ELF file.
pub(super) fn read(path: &Path) -> Option<Cuda> {
    let mut file = File::open(path).ok()?;
    let header = bytes(&mut file, 0, 64)?;
    if header.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count, names) = (
        number::<8>(&header, 40)?,
        number::<2>(&header, 58)?,
        number::<2>(&header, 60)?,
        number::<2>(&header, 62)?,
    );
    let sections = bytes(&mut file, table, size.checked_mul(count)?)?;
    let section = |index: u64| {
        let start = usize::try_from(index * size).ok()?;
        let entry = sections.get(start..start + usize::try_from(size).ok()?)?;
        Some((number::<4>(entry, 0)?, number::<8>(entry, 24)?, number::<8>(entry, 32)?))
    };
    let (_, offset, len) = section(names)?;
    let names = bytes(&mut file, offset, len)?;
    let is_constants = |name: u64| {
        let name = usize::try_from(name).ok().and_then(|start| names.get(start..)).unwrap_or_default();
        name.starts_with(b".rodata")
    };
    (0..count)
        .filter_map(section)
        .filter(|(name, _, len)| is_constants(*name) && *len <= MAX_CONSTANTS)
        .find_map(|(_, offset, len)| find(&bytes(&mut file, offset, len)?))
}

/// Finds `NCCL version 2.27.3+cuda12.9`.
fn find(constants: &[u8]) -> Option<Cuda> {
    const BEFORE: &[u8] = b"NCCL version ";
    const MARK: &[u8] = b"+cuda";
    constants.windows(BEFORE.len()).enumerate().filter(|(_, window)| *window == BEFORE).find_map(|(at, _)| {
        let text = constants.get(at + BEFORE.len()..)?;
        let text = &text[..text.len().min(64)];
        let mark = text.windows(MARK.len()).position(|window| window == MARK)?;
        if text[..mark].contains(&0) {
            return None;
        }
        let mut numbers = text[mark + MARK.len()..].split(|byte| !byte.is_ascii_digit());
        let mut next = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
        Some(Cuda { major: next()?, minor: next()? })
    })
}

/// A part of a file; `None` where it has less.
fn bytes(file: &mut File, offset: u64, len: u64) -> Option<Vec<u8>> {
    if len > MAX_CONSTANTS {
        return None;
    }
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == len).then_some(bytes)
}

/// A number of `N` bytes, least first.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + N)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_among_other_constants() {
        let found = |text: &[u8]| find(text);
        let cuda = |major, minor| Some(Cuda { major, minor });
        assert_eq!(found(b"\0NCCL version %d\0NCCL version 2.27.3+cuda12.9\0x"), cuda(12, 9));
        assert_eq!(found(b"NCCL version 2.30.7+cuda13.0"), cuda(13, 0));
        assert_eq!(found(b"NCCL version 2.30.7\0+cuda13.0"), None);
        assert_eq!(found(b"NCCL version 2.30.7+cudaX"), None);
        assert_eq!(found(b""), None);
    }

    #[test]
    fn a_file_that_is_no_library_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnccl.so.2");
        assert_eq!(read(&file), None);
        for contents in
            [b"".as_slice(), b"NCCL version 2.27.3+cuda12.9", &[0x7f, b'E', b'L', b'F', 2, 1, 0, 0]]
        {
            std::fs::write(&file, contents).unwrap();
            assert_eq!(read(&file), None);
        }
        let mut header = [0xff; 80];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        std::fs::write(&file, header).unwrap();
        assert_eq!(read(&file), None);
    }
}
