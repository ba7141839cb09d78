/// How a file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The dictionary of a PyTorch file that holds the weights, such as `model_state_dict`, with a dot between the keys
    /// of nested ones. Without it, the file's only one or the one with a usual name is taken.
    pub key: Option<String>,
    /// The most bytes of tensors that one file may expand to, by compression or by PyTorch's views that repeat their
    /// storage. Without it: 100 times the file's size, at least 1 GiB.
    pub max_expanded_bytes: Option<u64>,
}

impl OpenOptions {
    /// Takes the weights of a PyTorch file from the dictionary under `key`.
    pub fn with_key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Allows a file to expand to `bytes` bytes.
    pub fn with_max_expanded_bytes(self, bytes: u64) -> Self {
        Self { max_expanded_bytes: Some(bytes), ..self }
    }

    /// The most bytes that a file of `file_bytes` may expand to.
    pub(crate) fn limit(&self, file_bytes: u64) -> u64 {
        // Trained weights shrink by a tenth; only zeros and ones, as in a fresh optimizer or norm, shrink a hundredfold.
        self.max_expanded_bytes.unwrap_or_else(|| file_bytes.saturating_mul(100).max(1 << 30))
    }
}
