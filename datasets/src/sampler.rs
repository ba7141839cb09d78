//! Which images a rank sees in an epoch, and in which order.

use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::random::{Stream, generator, permutation};

/// What happens when the images do not divide evenly among the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Images from the start of the order are given a second time (more often where there are fewer
    /// images than ranks), so that each rank has ceil(n / world_size). PyTorch's `drop_last=False`.
    #[default]
    Pad,
    /// The tail of the order is left out, so that each rank has floor(n / world_size). PyTorch's
    /// `drop_last=True`.
    Drop,
    /// Each image exactly once; ranks differ by at most one image. For evaluation: repeats would
    /// count twice and make the accuracy depend on the number of ranks.
    Exact,
}

/// Divides a dataset among the ranks of a job by the rules of PyTorch's `DistributedSampler`.
///
/// All ranks compute the same order, the identity or a permutation drawn from `seed + epoch`, extend or
/// cut it as [`Sampling`] says, and rank r takes each `world_size`-th image from position r on.
/// The permutation is not the one PyTorch draws, because its generator is another.
///
/// Source: `torch/utils/data/distributed.py`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DistributedSampler {
    len: usize,
    rank: usize,
    world_size: usize,
    sampling: Sampling,
    shuffle_seed: Option<u64>,
}

impl DistributedSampler {
    /// A sampler of a dataset with `len` images for one rank, in dataset order.
    ///
    /// # Errors
    ///
    /// [`DataError::ZeroWorldSize`], and [`DataError::RankOutOfRange`] for a rank of `world_size` or more.
    pub fn new(len: usize, rank: usize, world_size: usize, sampling: Sampling) -> Result<Self, DataError> {
        if world_size == 0 {
            return Err(DataError::ZeroWorldSize);
        }
        if rank >= world_size {
            return Err(DataError::RankOutOfRange { rank, world_size });
        }
        Ok(Self { len, rank, world_size, sampling, shuffle_seed: None })
    }

    /// Shuffles each epoch by a permutation drawn from `seed + epoch`; the seed must be equal on all ranks.
    pub fn with_shuffle(self, seed: u64) -> Self {
        Self { shuffle_seed: Some(seed), ..self }
    }

    /// The same sampler for a dataset of another length.
    pub(crate) fn with_len(&self, len: usize) -> Self {
        Self { len, ..self.clone() }
    }

    /// The number of images this rank sees per epoch.
    pub fn num_samples(&self) -> usize {
        self.num_samples_from(0)
    }

    /// The number of images this rank still sees in an epoch of whose order `start` images are used.
    pub fn num_samples_from(&self, start: usize) -> usize {
        let left = self.len.saturating_sub(start);
        match self.sampling {
            Sampling::Pad => left.div_ceil(self.world_size),
            Sampling::Drop => left / self.world_size,
            Sampling::Exact => left.saturating_sub(self.rank).div_ceil(self.world_size),
        }
    }

    /// The dataset indices of this rank in `epoch`, in order. Empty when the dataset is.
    pub fn indices(&self, epoch: usize) -> Vec<usize> {
        self.indices_from(epoch, 0)
    }

    /// The dataset indices of this rank in what is left of `epoch` after `start` images, those of all ranks together.
    ///
    /// The order of an epoch does not depend on the world size, and every step takes the next images of it. So a run
    /// that stopped after `start` images goes on with the image that it would have taken next, on any number of ranks.
    pub fn indices_from(&self, epoch: usize, start: usize) -> Vec<usize> {
        // PyTorch seeds with the sum, so that seed 0 in epoch 1 equals seed 1 in epoch 0.
        let order = self.shuffle_seed.map(|seed| {
            permutation(&mut generator(Stream::Shuffle, seed.wrapping_add(epoch as u64), 0, 0), self.len)
        });
        (0..self.num_samples_from(start))
            .map(|i| {
                // Reading past the end starts over, which is the padding; the other modes never do.
                let position = (start + self.rank + i * self.world_size) % self.len;
                order.as_ref().map_or(position, |order| order[position])
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::below;

    fn all_ranks(n: usize, world_size: usize, sampling: Sampling) -> Vec<Vec<usize>> {
        (0..world_size)
            .map(|rank| DistributedSampler::new(n, rank, world_size, sampling).unwrap().indices(0))
            .collect()
    }

    #[test]
    fn unshuffled_indices_equal_those_of_pytorch() {
        // list(DistributedSampler(range(n), R, r, shuffle=False, drop_last=...)), torch 2.15.
        let pad = |n, ranks| all_ranks(n, ranks, Sampling::Pad);
        assert_eq!(pad(10, 4), [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]);
        assert_eq!(pad(8, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(pad(11, 3), [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 0]]);
        assert_eq!(pad(10, 3), [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]);
        assert_eq!(pad(3, 8), [[0], [1], [2], [0], [1], [2], [0], [1]]);
        assert_eq!(pad(2, 8), [[0], [1], [0], [1], [0], [1], [0], [1]]);
        assert_eq!(pad(1, 8), [[0]; 8]);
        let drop = |n, ranks| all_ranks(n, ranks, Sampling::Drop);
        assert_eq!(drop(10, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(drop(8, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(drop(11, 3), [[0, 3, 6], [1, 4, 7], [2, 5, 8]]);
        for n in 1..=3 {
            assert_eq!(drop(n, 8), [[0_usize; 0]; 8]);
        }
    }

    #[test]
    fn an_empty_dataset_gives_every_rank_nothing() {
        for sampling in [Sampling::Pad, Sampling::Drop, Sampling::Exact] {
            for rank in 0..8 {
                let sampler = DistributedSampler::new(0, rank, 8, sampling).unwrap().with_shuffle(1);
                assert_eq!((sampler.num_samples(), sampler.indices(3).len()), (0, 0));
            }
        }
    }

    #[test]
    fn ranks_share_the_dataset_for_random_sizes_epochs_and_modes() {
        let mut rng = generator(Stream::Shuffle, 99, 0, 0);
        for _ in 0..300 {
            let (n, ranks) = (below(&mut rng, 60), 1 + below(&mut rng, 9));
            let (seed, epoch) = (below(&mut rng, 1000) as u64, below(&mut rng, 20));
            for sampling in [Sampling::Pad, Sampling::Drop, Sampling::Exact] {
                let mut count = vec![0_usize; n];
                let mut sizes = Vec::new();
                for rank in 0..ranks {
                    let sampler = DistributedSampler::new(n, rank, ranks, sampling).unwrap();
                    let sampler = sampler.with_shuffle(seed);
                    let indices = sampler.indices(epoch);
                    assert_eq!(indices.len(), sampler.num_samples());
                    sizes.push(indices.len());
                    indices.into_iter().for_each(|index| count[index] += 1);
                }
                let total: usize = sizes.iter().sum();
                let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
                match sampling {
                    // Covering, and nothing is repeated more often than the padding needs.
                    Sampling::Pad => {
                        assert_eq!((total, spread), (n.div_ceil(ranks) * ranks, 0));
                        assert!(count.iter().all(|&c| (1..=total.div_ceil(n)).contains(&c)));
                    }
                    // Disjoint, and fewer than one image per rank is left out.
                    Sampling::Drop => {
                        assert_eq!((total, spread), (n / ranks * ranks, 0));
                        assert!(count.iter().all(|&c| c <= 1));
                    }
                    Sampling::Exact => {
                        assert!(spread <= 1);
                        assert!(count.iter().all(|&c| c == 1));
                    }
                }
            }
        }
    }

    #[test]
    fn exact_evaluation_counts_each_image_once_on_any_number_of_ranks() {
        // 10 images of which 0..7 are classified right: accuracy 0.7 whatever the number of ranks.
        for ranks in [1, 2, 3, 4, 16] {
            let seen: Vec<usize> = all_ranks(10, ranks, Sampling::Exact).concat();
            let right = seen.iter().filter(|&&index| index < 7).count();
            assert_eq!((right, seen.len()), (7, 10));
        }
    }

    #[test]
    fn epochs_have_different_orders_that_are_equal_on_every_run() {
        let sampler = DistributedSampler::new(50, 0, 1, Sampling::Pad).unwrap().with_shuffle(7);
        let epochs: Vec<_> = (0..4).map(|epoch| sampler.indices(epoch)).collect();
        for (i, order) in epochs.iter().enumerate() {
            assert!(epochs[i + 1..].iter().all(|other| other != order));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
            assert_eq!(*order, sampler.indices(i));
        }
        // The seed and the epoch add up, as in PyTorch.
        assert_eq!(sampler.clone().with_shuffle(8).indices(0), epochs[1]);
    }

    #[test]
    fn an_epoch_goes_on_where_it_stopped_on_the_same_and_on_another_number_of_ranks() {
        let (n, batch) = (53, 3);
        let ranks = |world_size, start, sampling| -> Vec<Vec<usize>> {
            (0..world_size)
                .map(|rank| DistributedSampler::new(n, rank, world_size, sampling).unwrap().with_shuffle(4))
                .map(|sampler| sampler.indices_from(2, start))
                .collect()
        };
        // What all ranks take together, step by step.
        let joined = |ranks: &[Vec<usize>]| -> Vec<usize> {
            let longest = ranks.iter().map(Vec::len).max().unwrap();
            (0..longest).flat_map(|i| ranks.iter().filter_map(move |rank| rank.get(i)).copied()).collect()
        };
        for sampling in [Sampling::Pad, Sampling::Drop, Sampling::Exact] {
            let whole = ranks(2, 0, sampling);
            let order = DistributedSampler::new(n, 0, 1, sampling).unwrap().with_shuffle(4).indices(2);
            for steps in 0..=8 {
                let start = steps * 2 * batch;
                let rest: Vec<_> = whole.iter().map(|rank| rank[steps * batch..].to_vec()).collect();
                assert_eq!(ranks(2, start, sampling), rest);
                for world_size in [1, 3, 4] {
                    let rest = joined(&ranks(world_size, start, sampling));
                    let shared = rest.len().min(n - start);
                    assert_eq!(rest[..shared], order[start..start + shared]);
                    assert!(n - start - shared < world_size);
                }
            }
        }
    }

    #[test]
    fn a_rank_outside_the_world_is_refused_with_both_numbers() {
        let new = |rank, world_size| DistributedSampler::new(5, rank, world_size, Sampling::Pad).unwrap_err();
        assert_eq!(
            new(2, 2).to_string(),
            "rank 2 is outside 0..2: give each process its own rank below the world size"
        );
        assert!(matches!(new(0, 0), DataError::ZeroWorldSize));
    }
}
