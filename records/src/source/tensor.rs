use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{BoolStore, Bytes, DType, TensorData};

use super::heap;
use crate::{Error, Result};

/// Where the bytes of a tensor are.
#[derive(Clone)]
pub(crate) enum Payload {
    /// In a mapped or decompressed file, row-major and little-endian.
    Shared(Bytes),
    /// In a PyTorch file, gathered on demand: its storages may be strided, shared or compressed.
    Pytorch(Arc<pytorch_reader::Tensor>),
}

/// A tensor of an opened file, not read yet.
#[derive(Clone)]
pub struct StoredTensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) byte_len: u64,
    pub(crate) param_id: Option<u64>,
    pub(crate) payload: Payload,
    /// The file and its format, for errors.
    pub(crate) origin: Arc<(PathBuf, &'static str)>,
}

impl StoredTensor {
    /// Its name in the file; in a PyTorch file, within the dictionary that was taken.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its shape as stored; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many bytes [`data`](Self::data) holds.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }

    /// The identity of the parameter it was saved from; burnpack only.
    pub fn param_id(&self) -> Option<u64> {
        self.param_id
    }

    /// The file that holds it.
    pub fn path(&self) -> &Path {
        &self.origin.0
    }

    /// Its values, without a copy where the format allows: they are then views of the mapped file, which must not be
    /// changed in place meanwhile (replacing it by a rename, as everything here does, is safe).
    ///
    /// # Errors
    ///
    /// [`Error::File`] and [`Error::Corrupt`], for a PyTorch file whose storage is missing, short or does not match its
    /// checksum.
    pub fn data(&self) -> Result<TensorData> {
        let bytes = match &self.payload {
            Payload::Shared(bytes) => bytes.clone(),
            Payload::Pytorch(tensor) => heap::bytes(tensor.read().map_err(|error| self.unreadable(error))?),
        };
        let bytes = self.usable(bytes);
        TensorData::try_from_bytes(bytes, self.shape.clone(), self.dtype).map_err(|error| self.corrupt(error))
    }

    /// `bytes` as Burn may take them: backends cast them to elements, which panics on an odd address and is undefined for
    /// a `bool` of 2. Such tensors are copied.
    fn usable(&self, bytes: Bytes) -> Bytes {
        let raw: &[u8] = &bytes;
        if self.dtype == DType::Bool(BoolStore::Native) {
            return Bytes::from_bytes_vec(raw.iter().map(|&byte| u8::from(byte != 0)).collect());
        }
        match raw.as_ptr().addr() % self.dtype.size().max(1) {
            0 => bytes,
            _ => Bytes::from_bytes_vec(raw.to_vec()),
        }
    }

    fn unreadable(&self, error: std::io::Error) -> Error {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        match error.kind() {
            InvalidData | UnexpectedEof => self.corrupt(error),
            _ => Error::file("read", self.path())(error),
        }
    }

    pub(crate) fn corrupt(&self, reason: impl fmt::Display) -> Error {
        let (path, format) = &*self.origin;
        Error::Corrupt { path: path.clone(), format, reason: format!("tensor `{}`: {reason}", self.name) }
    }
}

impl fmt::Debug for StoredTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredTensor")
            .field("name", &self.name)
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("param_id", &self.param_id)
            .finish_non_exhaustive()
    }
}
