//! Proof of the job's secret: what a challenge is answered with, for every protocol of this crate.
//!
//! Both sides choose a [`nonce`] for each connection and each proves that it knows the secret by a code over all that
//! was said. The label tells whose proof it is and of which protocol, so that none can be sent back to its author or
//! used elsewhere; the other side's fresh nonce makes a recorded proof worthless.
//!
//! This guards who is let in. It does not encrypt what is said afterwards.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{Error, Result};

/// Bytes of a nonce: so many that none comes twice.
pub(crate) const NONCE_BYTES: usize = 16;
/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = 32;
/// The shortest secret, in bytes.
const MIN_SECRET_BYTES: usize = 16;
const GIVEN: &[u8] = b"burn-nccl secret";
const DERIVED: &[u8] = b"burn-nccl run token";

/// What the ranks of one job know and nobody else does. Neither `Debug` nor an error shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    key: [u8; PROOF_BYTES],
}

impl Secret {
    /// The secret that a launcher or a user gives to all ranks, in hexadecimal digits.
    ///
    /// # Errors
    ///
    /// [`Error::Secret`] if it has fewer than 16 bytes or other characters.
    pub fn from_hex(digits: &str) -> Result<Self> {
        let refused = |found: String| Err(Error::Secret { found });
        if let Some(at) = digits.bytes().position(|byte| !byte.is_ascii_hexdigit()) {
            return refused(format!("has no hexadecimal digit at place {}", at + 1));
        }
        if digits.len() % 2 == 1 || digits.len() / 2 < MIN_SECRET_BYTES {
            return refused(format!("has {} digits", digits.len()));
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).expect("checked above") as u8;
        let bytes: Vec<u8> = digits.as_bytes().chunks(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect();
        Ok(Self { key: code(&bytes, &[GIVEN]).finalize().into_bytes().into() })
    }

    /// A secret that no other job has, for ranks that live in one process.
    pub(crate) fn random() -> Result<Self> {
        let mut key = [0; PROOF_BYTES];
        fill_random(&mut key)?;
        Ok(Self { key })
    }

    /// The stand-in of jobs without a secret. Who knows or guesses the run token has it: it keeps jobs apart that
    /// meet by mistake, and no attacker out.
    pub(crate) fn derive(run_id: &str) -> Self {
        Self { key: code(DERIVED, &[run_id.as_bytes()]).finalize().into_bytes().into() }
    }

    /// The proof of the side that `label` names, over what both sides have said.
    pub(crate) fn prove(&self, label: &str, transcript: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.over(label, transcript).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of the side that `label` names. Takes equally long wherever they differ.
    pub(crate) fn verify(&self, label: &str, transcript: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> bool {
        self.over(label, transcript).verify(proof.into()).is_ok()
    }

    fn over(&self, label: &str, transcript: &[&[u8]]) -> Hmac<Sha256> {
        let parts: Vec<&[u8]> = std::iter::once(label.as_bytes()).chain(transcript.iter().copied()).collect();
        code(&self.key, &parts)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A number that was never used before and that nobody can foretell.
pub(crate) fn nonce() -> Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    fill_random(&mut nonce)?;
    Ok(nonce)
}

fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| Error::Random { cause: error.to_string() })
}

/// Each part goes in with its length, so that no two lists of parts read alike.
fn code(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        code.update(&(part.len() as u64).to_le_bytes());
        code.update(part);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &str = "000102030405060708090a0b0c0d0e0F";

    #[test]
    fn a_proof_holds_for_its_own_secret_side_and_words_only() {
        let secret = Secret::from_hex(DIGITS).unwrap();
        let proof = secret.prove("caller", &[b"ab", b"c"]);
        assert!(secret.verify("caller", &[b"ab", b"c"], &proof));
        assert!(!secret.verify("callee", &[b"ab", b"c"], &proof));
        assert!(!secret.verify("caller", &[b"a", b"bc"], &proof), "the parts read alike");
        assert!(!secret.verify("caller", &[b"ab", b"c", b""], &proof));
        assert!(!Secret::derive("job").verify("caller", &[b"ab", b"c"], &proof));
        for bit in 0..8 * PROOF_BYTES {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.verify("caller", &[b"ab", b"c"], &changed), "bit {bit}");
        }
    }

    #[test]
    fn a_proof_is_the_hmac_sha256_of_the_parts_with_their_lengths() {
        // By Python: hmac.new(hmac.new(bytes(range(16)), n(GIVEN), 'sha256').digest(), n(b"caller") + n(b"ab"), ..)
        // where n(part) = struct.pack('<Q', len(part)) + part.
        let secret = Secret::from_hex(DIGITS).unwrap();
        let proof = secret.prove("caller", &[b"ab"]);
        let text: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "ee8d90a17b426d7e36bfeb03dea646149207be42b0e12f192a55187916905545");
    }

    #[test]
    fn a_secret_is_refused_when_it_is_short_or_no_hexadecimal_and_is_never_shown() {
        for (digits, found) in [
            ("", "has 0 digits"),
            (&DIGITS[2..], "has 30 digits"),
            (&format!("{DIGITS}0"), "has 33 digits"),
            (&DIGITS.replace('a', "g"), "has no hexadecimal digit at place 22"),
        ] {
            let error = Secret::from_hex(digits).unwrap_err();
            assert!(matches!(&error, Error::Secret { found: text } if text == found), "{error}");
            assert!(digits.is_empty() || !error.to_string().contains(digits), "{error}");
        }
        assert_eq!(format!("{:?}", Secret::from_hex(DIGITS).unwrap()), "Secret(..)");
    }

    #[test]
    fn nonces_and_random_secrets_do_not_come_twice() {
        assert_ne!(nonce().unwrap(), nonce().unwrap());
        assert!(Secret::random().unwrap() != Secret::random().unwrap());
        assert!(Secret::derive("a") != Secret::derive("b"));
    }
}
