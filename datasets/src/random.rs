//! Random numbers that do not change with a release of a random-number crate.
//!
//! ChaCha with 8 rounds is a specified stream; the draws from it are made here, so that a run that is
//! resumed after an upgrade goes on with the same order and the same crops.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// What a stream of random numbers is for; keeps the streams of one seed apart.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    Shuffle = 1,
    Transform = 2,
}

/// A generator whose numbers depend on the arguments only.
pub(crate) fn generator(stream: Stream, seed: u64, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    let words = [seed, epoch, index, stream as u64];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A uniform integer in `0..bound`; `bound` must not be 0.
pub(crate) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    // The product's high half is uniform up to a bias of bound / 2^64: nothing for a dataset.
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

/// A uniform number in `low..high` (`low` when both are equal), with 24 random bits.
pub(crate) fn uniform(rng: &mut ChaCha8Rng, low: f32, high: f32) -> f32 {
    let unit = (rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
    low + (high - low) * unit
}

/// The numbers `0..n` in random order (Fisher and Yates).
pub(crate) fn permutation(rng: &mut ChaCha8Rng, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, below(rng, last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_in_every_argument() {
        let first = |stream, seed, epoch, index| generator(stream, seed, epoch, index).next_u64();
        let draws = [
            first(Stream::Shuffle, 0, 0, 0),
            first(Stream::Transform, 0, 0, 0),
            first(Stream::Transform, 1, 0, 0),
            first(Stream::Transform, 0, 1, 0),
            first(Stream::Transform, 0, 0, 1),
        ];
        for (i, a) in draws.iter().enumerate() {
            assert!(draws[i + 1..].iter().all(|b| a != b), "{draws:?}");
        }
        assert_eq!(draws[4], first(Stream::Transform, 0, 0, 1));
    }

    #[test]
    fn draws_stay_in_range_and_reach_each_value() {
        let mut rng = generator(Stream::Transform, 3, 0, 0);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[below(&mut rng, 5)] += 1;
            let x = uniform(&mut rng, -2.0, 3.0);
            assert!((-2.0..3.0).contains(&x));
        }
        // 1000 draws, 200 expected each, standard deviation 12.6: 5 of them either way.
        assert!(seen.iter().all(|&count| (137..=263).contains(&count)), "{seen:?}");
        assert_eq!(below(&mut rng, 1), 0);
        assert_eq!(uniform(&mut rng, 1.5, 1.5), 1.5);
    }
}
