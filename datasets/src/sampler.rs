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
        match self.sampling {
            Sampling::Pad => self.len.div_ceil(self.world_size),
            Sampling::Drop => self.len / self.world_size,
            Sampling::Exact => self.len.saturating_sub(self.rank).div_ceil(self.world_size),
        }
    }

    /// The dataset indices of this rank in `epoch`, in order. Empty when the dataset is.
    pub fn indices(&self, epoch: usize) -> Vec<usize> {
        // PyTorch seeds with the sum, so that seed 0 in epoch 1 equals seed 1 in epoch 0.
        let order = self.shuffle_seed.map(|seed| {
            permutation(&mut generator(Stream::Shuffle, seed.wrapping_add(epoch as u64), 0, 0), self.len)
        });
        (0..self.num_samples())
            .map(|i| {
                // Reading past the end starts over, which is the padding; the other modes never do.
                let position = (self.rank + i * self.world_size) % self.len;
                order.as_ref().map_or(position, |order| order[position])
            })
            .collect()
    }
}
