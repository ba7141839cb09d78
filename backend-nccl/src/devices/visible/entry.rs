//! The entries of `CUDA_VISIBLE_DEVICES`.

use std::fmt;

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A number in CUDA's order.
    Index(usize),
    /// A UUID or its first characters: `GPU-…` or `MIG-…`.
    Uuid(String),
    /// The older form of an instance, `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    Instance { gpu: String, gpu_instance: u32, compute_instance: u32 },
}

impl Entry {
    /// Reads an entry of a list that begins with `first`.
    pub(super) fn parse(text: &str, first: Option<&Self>) -> Result<Self, String> {
        let entry = if text.starts_with("GPU-") {
            Self::Uuid(text.to_owned())
        } else if let Some(instance) = text.strip_prefix("MIG-") {
            parse_instance(instance).unwrap_or_else(|| Self::Uuid(text.to_owned()))
        } else {
            let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
            Self::Index(text[..digits].parse().map_err(|_| "it is neither a number nor a UUID".to_owned())?)
        };
        match first {
            Some(first) if kind(first) != kind(&entry) => {
                Err(format!("it follows {} in a list, which cannot hold both", kind(first)))
            }
            _ => Ok(entry),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(prefix) => f.write_str(prefix),
            Self::Instance { gpu, gpu_instance, compute_instance } => {
                write!(f, "MIG-{gpu}/{gpu_instance}/{compute_instance}")
            }
        }
    }
}

fn parse_instance(text: &str) -> Option<Entry> {
    let mut parts = text.split('/');
    let (gpu, gpu_instance, compute_instance) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = gpu.starts_with("GPU-") && parts.next().is_none();
    let (gpu_instance, compute_instance) = (gpu_instance.parse().ok()?, compute_instance.parse().ok()?);
    is_whole.then(|| Entry::Instance { gpu: gpu.to_owned(), gpu_instance, compute_instance })
}

fn kind(entry: &Entry) -> &'static str {
    match entry {
        Entry::Index(_) => "a number",
        Entry::Uuid(prefix) if prefix.starts_with("GPU-") => "a GPU",
        Entry::Uuid(_) | Entry::Instance { .. } => "a MIG instance",
    }
}
