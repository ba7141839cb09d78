use sha2::{Digest, Sha256};

/// A SHA-256 as manifests and `sha256sum` have it: in lower-case hexadecimal.
pub(crate) fn hex(hash: Sha256) -> String {
    format!("{:x}", hash.finalize())
}
