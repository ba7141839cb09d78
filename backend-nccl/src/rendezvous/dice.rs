//! Choices by chance.

use super::challenge::nonce;

/// Random choices, which nobody who only sends can foretell.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new() -> Self {
        // Without a random source nobody can prove anything either.
        let seed =
            nonce().map_or(1, |nonce| u64::from_le_bytes(*nonce.first_chunk().expect("a nonce is longer")));
        Self(seed | 1)
    }

    /// A number below `count`, which is not 0. (xorshift64: Marsaglia 2003, "Xorshift RNGs".)
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}
