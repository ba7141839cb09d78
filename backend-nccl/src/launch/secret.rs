use super::error::LaunchError;
use crate::{Error, rendezvous::Secret};
use std::{ffi::OsStr, fs, io, path::Path};

/// Holds the launchers' secret on the way in, and the ranks' on the way out.
pub(super) const SECRET_VARIABLE: &str = "BURN_NCCL_SECRET";

/// Random bytes of a nonce, and of the ranks' secret.
const RANDOM_BYTES: usize = 32;

/// Reads the secret of the launchers from a file.
///
/// # Errors
/// [`LaunchError::SecretFile`] where it cannot be read, [`LaunchError::Secret`] where it holds no secret.
pub fn secret_from_file(path: &Path) -> Result<Secret, LaunchError> {
    let text = fs::read_to_string(path)
        .map_err(|source| LaunchError::SecretFile { path: path.to_owned(), source })?;
    parse(&text, &path.display().to_string())
}

/// The secret of the launchers in the variable `BURN_NCCL_SECRET`; an empty one is none.
///
/// # Errors
/// [`LaunchError::Secret`] where the variable holds something else.
pub fn secret_from_environment() -> Result<Option<Secret>, LaunchError> {
    std::env::var_os(SECRET_VARIABLE).map_or(Ok(None), |value| from_variable(&value))
}

/// What is no text is no secret either, which is not the same as to have none.
fn from_variable(value: &OsStr) -> Result<Option<Secret>, LaunchError> {
    let text = value.to_string_lossy();
    if text.trim().is_empty() { Ok(None) } else { parse(&text, SECRET_VARIABLE).map(Some) }
}

fn parse(text: &str, origin: &str) -> Result<Secret, LaunchError> {
    Secret::from_hex(text.trim()).map_err(|error| LaunchError::Secret {
        origin: origin.to_owned(),
        found: match error {
            Error::Secret { found } => found,
            error => error.to_string(),
        },
    })
}

/// Shows in hexadecimal digits that the holder knows `secret`, for these `parts` and no others.
pub(super) fn prove(secret: &Secret, label: &str, parts: &[&[u8]]) -> String {
    hex(&secret.prove(label, parts))
}

/// Whether `proof` is that of somebody who knows `secret`.
pub(super) fn accepts(secret: &Secret, label: &str, parts: &[&[u8]], proof: &str) -> bool {
    let proof = unhex(proof).and_then(|bytes| bytes.try_into().ok());
    proof.is_some_and(|proof| secret.verify(label, parts, &proof))
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
    shared.map_or_else(|| seed.to_owned(), |shared| prove(shared, "ranks of burnrun", &[seed.as_bytes()]))
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

    const DIGITS: &str = "00112233445566778899aabbccddeeff";

    fn secret() -> Secret {
        parse(&format!(" {DIGITS}\n"), "test").expect("a secret")
    }

    #[test]
    fn a_proof_is_accepted_for_its_own_secret_label_and_parts() {
        let proof = prove(&secret(), "a", &[b"b"]);
        assert!(accepts(&secret(), "a", &[b"b"], &proof));
        assert!(!accepts(&secret(), "b", &[b"b"], &proof) && !accepts(&secret(), "a", &[b"c"], &proof));
        for wrong in ["", "zz", &proof[2..], &proof.replace(&proof[..2], "é")] {
            assert!(!accepts(&secret(), "a", &[b"b"], wrong), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_secret_is_named_with_where_it_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("secret");
        assert!(matches!(secret_from_file(&path), Err(LaunchError::SecretFile { .. })));
        fs::write(&path, "hunter2").expect("written");
        let text = secret_from_file(&path).expect_err("no secret").to_string();
        assert!(text.contains(&path.display().to_string()) && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn a_variable_that_is_no_text_is_an_error_and_an_empty_one_no_secret() {
        use std::os::unix::ffi::OsStrExt;
        let found = |bytes: &[u8]| from_variable(OsStr::from_bytes(bytes));
        assert!(matches!(found(b" \n"), Ok(None)));
        assert!(matches!(found(DIGITS.as_bytes()), Ok(Some(_))));
        let error = found(&[DIGITS.as_bytes(), b"\xff\xff"].concat()).expect_err("no secret");
        assert!(
            matches!(&error, LaunchError::Secret { origin, .. } if origin == "BURN_NCCL_SECRET"),
            "{error}"
        );
    }

    #[test]
    fn what_travels_is_the_ranks_secret_only_without_a_shared_one() {
        let seed = random_hex().expect("random");
        assert_eq!(seed.len(), 64);
        assert_eq!(rank_secret(None, &seed), seed);
        let derived = rank_secret(Some(&secret()), &seed);
        assert!(derived.len() == 64 && derived != seed && derived == rank_secret(Some(&secret()), &seed));
        assert_ne!(seed, random_hex().expect("random"));
    }
}
