//! From tensors to the bytes of a file, in one pass.

mod burnpack;
pub(crate) mod collect;
mod safetensors;
pub(crate) mod shards;
mod storage;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use burn::store::burn_pack::Tensor;
use burn::tensor::DType;

use crate::atomic::Scratch;
use crate::error::{Error, Result};
use crate::names::{NAMES_KEY, Names};
use crate::save::{SaveFormat, SaveOptions};
use crate::save_dtype;

/// Bytes of a tensor that are rounded before they are written.
const BLOCK_BYTES: usize = 16 << 20;

/// Small tensors are gathered up to this size; larger ones are written from where they are.
const BUFFER_BYTES: usize = 256 << 10;

/// Where everything of a file lies, known before a tensor is read.
pub(crate) struct Plan {
    header: Vec<u8>,
    /// In the order of their place.
    entries: Vec<Entry>,
    /// Of the whole file.
    bytes: u64,
}

/// A tensor and what becomes of it.
struct Entry {
    tensor: Tensor,
    /// Its type in the file.
    stored: DType,
    /// Its first byte in the file.
    start: u64,
}

/// A whole file under its temporary name.
pub(crate) struct Written {
    pub(crate) scratch: Scratch,
    pub(crate) bytes: u64,
    pub(crate) largest_error: f64,
}

/// Lays out a file. Reads no tensor.
pub(crate) fn plan(tensors: Vec<Tensor>, options: &SaveOptions) -> Result<Plan> {
    let mut metadata = options.metadata.clone();
    metadata.insert(NAMES_KEY.into(), options.names.name().into());
    match options.format {
        SaveFormat::Burnpack => burnpack::plan(tensors, options.dtype, &metadata),
        SaveFormat::Safetensors => {
            if options.names == Names::Torch {
                // What Hugging Face's loaders ask for.
                metadata.insert("format".into(), "pt".into());
            }
            safetensors::plan(tensors, options.dtype, &metadata)
        }
    }
}

/// Writes a file under a temporary name beside `path`.
pub(crate) fn write_file(plan: Plan, path: &Path, options: &SaveOptions) -> Result<Written> {
    let Some(zstd) = options.compression else {
        let bytes = plan.bytes;
        let mut scratch = Scratch::create(path, Some(bytes))?;
        let failed = scratch.write_error();
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, &mut scratch);
        let largest_error = plan.write(&mut out, &failed)?;
        out.flush().map_err(failed)?;
        drop(out);
        return Ok(Written { scratch, bytes, largest_error });
    };
    let mut scratch = Scratch::create(path, None)?;
    let failed = scratch.write_error();
    let mut counted = Counted { inner: &mut scratch, bytes: 0 };
    let largest_error =
        zstd.compress(&mut counted, plan.bytes, |mut out| plan.write(&mut out, &failed), &failed)?;
    let bytes = counted.bytes;
    Ok(Written { scratch, bytes, largest_error })
}

impl Plan {
    /// Writes every byte, and returns the largest error of rounding. Each tensor is dropped before the next is read.
    fn write(self, out: &mut impl Write, failed: impl Fn(io::Error) -> Error) -> Result<f64> {
        let mut place = self.header.len() as u64;
        let mut largest_error = 0.0_f64;
        let mut block = Vec::new();
        out.write_all(&self.header).map_err(&failed)?;
        for entry in self.entries {
            pad(out, entry.start - place).map_err(&failed)?;
            place = entry.start + entry.stored_bytes();
            largest_error = largest_error.max(entry.write(out, &mut block, &failed)?);
        }
        pad(out, self.bytes - place).map_err(&failed)?;
        Ok(largest_error)
    }
}

impl Entry {
    fn new(tensor: Tensor, stored: DType) -> Self {
        Self { tensor, stored, start: 0 }
    }

    /// Bytes in the file.
    fn stored_bytes(&self) -> u64 {
        let bytes = self.tensor.byte_len();
        let bytes = if self.rounds() { bytes / self.tensor.dtype.size() * self.stored.size() } else { bytes };
        bytes as u64
    }

    fn rounds(&self) -> bool {
        self.stored != self.tensor.dtype && matches!(self.stored, DType::F16 | DType::BF16)
    }

    fn write(
        self,
        out: &mut impl Write,
        block: &mut Vec<u16>,
        failed: impl Fn(io::Error) -> Error,
    ) -> Result<f64> {
        let (rounds, from, to) = (self.rounds(), self.tensor.dtype, self.stored);
        let name = self.tensor.name.clone();
        let bytes =
            self.tensor.into_bytes().map_err(|source| Error::Tensor { tensor: name.clone(), source })?;
        if !rounds {
            out.write_all(&bytes).map_err(failed)?;
            return Ok(0.0);
        }
        let mut largest_error = 0.0_f64;
        for source in bytes.chunks(BLOCK_BYTES) {
            block.resize(source.len() / from.size(), 0);
            let error = save_dtype::round(source, from, to, block)
                .map_err(|value| save_dtype::overflow(&name, value, to))?;
            largest_error = largest_error.max(error);
            out.write_all(bytemuck::cast_slice(block)).map_err(&failed)?;
        }
        Ok(largest_error)
    }
}

fn pad(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes), out).map(drop)
}

/// Refuses two tensors of one name, of which a file would lose one.
fn refuse_duplicates(tensors: &[Tensor]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::DuplicateTensor { tensor: pair[0].into() }),
        None => Ok(()),
    }
}

/// Refuses what the readers of a format, this crate's among them, would refuse: such a file is worth nothing.
fn within(what: &str, size: u64, limit: u64, format: &'static str) -> Result<()> {
    if size <= limit {
        return Ok(());
    }
    Err(Error::Limit { what: what.into(), size, limit, format })
}

/// Counts what passes.
struct Counted<'a, W> {
    inner: &'a mut W,
    bytes: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
