use std::io::{self, Write};
use std::num::NonZero;

use crate::error::{Error, Result};

/// Compression by [zstd](https://facebook.github.io/zstd/), for files that are kept or sent more often than loaded.
///
/// The values of weights look random but for their exponents: expect a twelfth less of f32, and more of f16 and bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zstd {
    /// 1 (fast) to 22 (small and slow); 3 is zstd's default, negative ones are faster still.
    pub level: i32,
    /// Threads that compress; 0 takes one per processor.
    pub threads: u32,
}

impl Default for Zstd {
    fn default() -> Self {
        Self { level: zstd::DEFAULT_COMPRESSION_LEVEL, threads: 0 }
    }
}

impl Zstd {
    /// Refuses a level that zstd would silently replace by its nearest.
    pub(crate) fn check(self) -> Result<()> {
        let levels = zstd::compression_level_range();
        if levels.contains(&self.level) {
            return Ok(());
        }
        Err(Error::CompressionLevel { level: self.level, lowest: *levels.start(), highest: *levels.end() })
    }

    /// Runs `write` on a stream whose compressed form goes to `out`.
    ///
    /// The frame says how many `bytes` it holds, so that a reader knows before it allocates, and ends with a checksum.
    pub(crate) fn compress<T>(
        self,
        out: &mut impl Write,
        bytes: u64,
        write: impl FnOnce(&mut dyn Write) -> Result<T>,
        failed: impl Fn(io::Error) -> Error,
    ) -> Result<T> {
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get).try_into().unwrap_or(u32::MAX),
            threads => threads,
        };
        let start = || {
            let mut encoder = zstd::Encoder::new(out, self.level)?;
            encoder.include_checksum(true)?;
            encoder.set_pledged_src_size(Some(bytes))?;
            encoder.multithread(threads)?;
            Ok(encoder)
        };
        let mut encoder = start().map_err(&failed)?;
        let value = write(&mut encoder)?;
        encoder.finish().map_err(&failed)?;
        Ok(value)
    }
}
