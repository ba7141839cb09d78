//! The bytes of a file: mapped, or decompressed within a limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, MmapOptions};

use super::OpenOptions;
use crate::format::{Format, HEAD_BYTES};
use crate::{Error, Result};

/// What a zstd stream starts with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The start of a file, at most [`HEAD_BYTES`], and whether it had to be decompressed for that.
pub(crate) fn peek(path: &Path) -> Result<(Vec<u8>, bool)> {
    let read = || {
        let mut head = Vec::new();
        File::open(path)?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok(head)
    };
    let head = read().map_err(Error::file("read", path))?;
    if !head.starts_with(&ZSTD_MAGIC) {
        return Ok((head, false));
    }
    let mut inner = Vec::new();
    decoder(path)?
        .take(HEAD_BYTES as u64)
        .read_to_end(&mut inner)
        .map_err(|error| bad_stream(path, error))?;
    Ok((inner, true))
}

/// A file's bytes.
pub(crate) struct Contents {
    pub(crate) path: PathBuf,
    pub(crate) bytes: bytes::Bytes,
    /// Size on disk.
    pub(crate) file_bytes: u64,
}

impl Contents {
    /// Maps a file, or decompresses it.
    pub(crate) fn open(path: &Path, compressed: bool, options: &OpenOptions) -> Result<Self> {
        let file = File::open(path).map_err(Error::file("open", path))?;
        let file_bytes = file.metadata().map_err(Error::file("read", path))?.len();
        let bytes = if compressed {
            decompressed(path, options)?
        } else {
            // SAFETY: the map is private and read-only, and everything made from it keeps it alive. That nobody writes
            // into the file meanwhile is asked of the user, at `Source`; this crate only ever replaces files by renaming.
            let map = unsafe { Mmap::map(&file) }.map_err(Error::file("map", path))?;
            bytes::Bytes::from_owner(map)
        };
        Ok(Self { path: path.into(), bytes, file_bytes })
    }

    /// What errors of its tensors name.
    pub(crate) fn origin(&self, format: Format) -> Arc<(PathBuf, &'static str)> {
        Arc::new((self.path.clone(), format.name()))
    }

    /// The file does not hold what it claims.
    pub(crate) fn corrupt(&self, format: Format, reason: impl ToString) -> Error {
        Error::Corrupt { path: self.path.clone(), format: format.name(), reason: reason.to_string() }
    }
}

/// The most addresses that are reserved for a file: 16 TiB, of the 128 that a process has.
const MOST_BYTES: u64 = 1 << 44;

/// The decompressed file at `path`.
///
/// The system gives memory to pages as they are first written, where a vector that grows would at times exist twice. So a
/// stream that does not say its size takes a whole limit's worth of addresses, which costs nothing where a process may
/// have them.
fn decompressed(path: &Path, options: &OpenOptions) -> Result<bytes::Bytes> {
    let (limit, declared) = allowance(path, options)?;
    let limit = limit.min(MOST_BYTES);
    // A stream of several frames declares the first alone: what goes on after it is read again, with room for all.
    for room in declared.filter(|&bytes| bytes < limit).into_iter().chain([limit]) {
        let mut memory = reserve(path, room)?;
        let mut filled = io::Cursor::new(&mut memory[..]);
        if unpack(path, room, &mut filled)? {
            let length = filled.position() as usize;
            return Ok(bytes::Bytes::from_owner(memory).slice(..length));
        }
    }
    Err(too_large(path, limit.saturating_add(1), limit))
}

fn reserve(path: &Path, bytes: u64) -> Result<MmapMut> {
    let memory = MmapOptions::new().len(bytes as usize).no_reserve_swap().map_anon();
    memory.map_err(|source| Error::Memory { path: path.into(), bytes, source })
}

/// Writes the decompressed file at `path` to `to`, as long as it stays within the limit.
pub(crate) fn decompress(path: &Path, options: &OpenOptions, to: &mut impl Write) -> Result<()> {
    let (limit, _) = allowance(path, options)?;
    match unpack(path, limit, to)? {
        true => Ok(()),
        false => Err(too_large(path, limit.saturating_add(1), limit)),
    }
}

/// The most bytes that the file at `path` may expand to, and what it says that it does, which is not more.
fn allowance(path: &Path, options: &OpenOptions) -> Result<(u64, Option<u64>)> {
    let limit = options.limit(file_bytes(path)?);
    match declared_bytes(path)? {
        Some(bytes) if bytes > limit => Err(too_large(path, bytes, limit)),
        declared => Ok((limit, declared)),
    }
}

fn too_large(path: &Path, bytes: u64, limit: u64) -> Error {
    Error::TooLarge { path: path.into(), from: file_bytes(path).unwrap_or_default(), bytes, limit }
}

fn file_bytes(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).map_err(Error::file("read", path))?.len())
}

/// Writes the decompressed file at `path` to `to`, at most `most` bytes, and says whether that is all of it.
fn unpack(path: &Path, most: u64, to: &mut impl Write) -> Result<bool> {
    let mut stream = decoder(path)?;
    io::copy(&mut stream.by_ref().take(most), to).map_err(|error| bad_stream(path, error))?;
    // One byte more is either too many, or the check that the stream ends as it should.
    Ok(stream.read(&mut [0]).map_err(|error| bad_stream(path, error))? == 0)
}

/// What the first frame says that it holds, if it does; a stream may have more than one.
fn declared_bytes(path: &Path) -> Result<Option<u64>> {
    /// The longest header of a frame.
    const HEADER_BYTES: u64 = 18;
    let mut header = Vec::new();
    let file = File::open(path).map_err(Error::file("open", path))?;
    file.take(HEADER_BYTES).read_to_end(&mut header).map_err(Error::file("read", path))?;
    Ok(zstd::zstd_safe::get_frame_content_size(&header).ok().flatten())
}

/// zstd itself refuses a window above 128 MiB, which is all that a stream makes it allocate.
fn decoder(path: &Path) -> Result<zstd::Decoder<'static, io::BufReader<File>>> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    zstd::Decoder::new(file).map_err(Error::file("read", path))
}

fn bad_stream(path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::file("read", path)(error),
        None => Error::Corrupt { path: path.into(), format: "zstd", reason: error.to_string() },
    }
}
