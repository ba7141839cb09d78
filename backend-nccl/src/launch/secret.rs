use super::error::LaunchError;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::{fmt, fs, io, path::Path};

/// Holds the launchers' secret on the way in, and the ranks' on the way out.
pub(super) const SECRET_VARIABLE: &str = "BURN_NCCL_SECRET";

/// A secret file that is longer is not one; a key beyond the hash's block would be hashed down anyway.
const MAX_SECRET_BYTES: usize = 4096;

/// Random bytes of a nonce, and of the ranks' secret.
const RANDOM_BYTES: usize = 32;

/// What the launchers of one job share and nobody else knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes `text` without the white space around it.
    ///
    /// # Errors
    /// [`LaunchError::Secret`] where nothing is left, or far too much.
    pub fn new(text: &str, origin: &str) -> Result<Self, LaunchError> {
        let text = text.trim();
        let refused = |why| LaunchError::Secret { origin: origin.to_owned(), why };
        match text.len() {
            0 => Err(refused("it is empty")),
            1..=MAX_SECRET_BYTES => Ok(Self(text.as_bytes().to_vec())),
            _ => Err(refused("it is longer than 4096 bytes")),
        }
    }

    /// Reads the secret from a file.
    ///
    /// # Errors
    /// [`LaunchError::SecretFile`] where it cannot be read, [`LaunchError::Secret`] as [`new`](Self::new).
    pub fn from_file(path: &Path) -> Result<Self, LaunchError> {
        let text = fs::read_to_string(path)
            .map_err(|source| LaunchError::SecretFile { path: path.to_owned(), source })?;
        Self::new(&text, &path.display().to_string())
    }

    /// The secret in the variable `BURN_NCCL_SECRET`, where there is one.
    ///
    /// # Errors
    /// As [`new`](Self::new); an empty variable is none.
    pub fn from_environment() -> Result<Option<Self>, LaunchError> {
        match std::env::var(SECRET_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => Self::new(&text, SECRET_VARIABLE).map(Some),
            _ => Ok(None),
        }
    }

    /// Shows that the holder knows the secret, for these `parts` and no others.
    pub(super) fn prove(&self, parts: &[&[u8]]) -> String {
        hex(&self.mac(parts).finalize().into_bytes())
    }

    /// Whether `proof` is that of somebody who knows the secret; takes the same time for each wrong one.
    pub(super) fn accepts(&self, parts: &[&[u8]], proof: &str) -> bool {
        unhex(proof).is_some_and(|proof| self.mac(parts).verify_slice(&proof).is_ok())
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            // With its length before it, no part can pass for the end of another.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// 64 hexadecimal digits from the system's random source.
pub(super) fn random_hex() -> Result<String, LaunchError> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| LaunchError::System {
        action: "get random bytes",
        source: io::Error::other(error.to_string()),
    })?;
    Ok(hex(&bytes))
}

/// The ranks' secret of an attempt, from the `seed` that node 0 has drawn and sent to the other nodes.
///
/// Where the launchers share a secret, what travels is worth nothing to who listens. Where they do not, it is the
/// ranks' secret itself.
pub(super) fn rank_secret(shared: Option<&Secret>, seed: &str) -> String {
    shared.map_or_else(|| seed.to_owned(), |shared| shared.prove(&[b"burn-nccl ranks", seed.as_bytes()]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_the_published_hmac_of_the_framed_parts() {
        // python3 -c "import hmac,hashlib,struct; p=lambda b: struct.pack('<Q',len(b))+b;
        //   print(hmac.new(b'key', p(b'a')+p(b'bc'), hashlib.sha256).hexdigest())"
        let secret = Secret::new(" key\n", "test").expect("a secret");
        let proof = secret.prove(&[b"a", b"bc"]);
        assert_eq!(proof, PYTHON);
        assert!(secret.accepts(&[b"a", b"bc"], &proof));
        assert!(!secret.accepts(&[b"ab", b"c"], &proof));
        assert!(!secret.accepts(&[b"a", b"bc"], &proof[2..]) && !secret.accepts(&[b"a", b"bc"], "zz"));
        assert!(!Secret::new("other", "test").expect("a secret").accepts(&[b"a", b"bc"], &proof));
    }

    const PYTHON: &str = "732a3d11f8aa359c8f01a8e2a3c240e35e35a71da6686a8cab3eee8b1cbcca6c";

    #[test]
    fn no_secret_and_a_shown_one_do_not_exist() {
        assert!(matches!(Secret::new(" \n", "f"), Err(LaunchError::Secret { .. })));
        assert!(Secret::new(&"x".repeat(4097), "f").is_err());
        assert_eq!(format!("{:?}", Secret::new("hunter2", "f").expect("a secret")), "Secret(..)");
    }

    #[test]
    fn what_travels_is_the_ranks_secret_only_without_a_shared_one() {
        let seed = random_hex().expect("random");
        assert_eq!(seed.len(), 64);
        assert_eq!(rank_secret(None, &seed), seed);
        let shared = Secret::new("key", "test").expect("a secret");
        let secret = rank_secret(Some(&shared), &seed);
        assert!(secret.len() == 64 && secret != seed && secret == rank_secret(Some(&shared), &seed));
        assert_ne!(seed, random_hex().expect("random"));
    }
}
