//! Where a training stands, besides the tensors.

use burn_nccl::amp::GradScalerState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where a training stands, besides the tensors: the file `state.json` of a checkpoint.
///
/// [`step`](Self::step) names the checkpoint; everything else is the caller's to fill and to use again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingState {
    /// Optimizer steps that were made, which is the number in the checkpoint's name.
    pub step: u64,
    /// Epochs that were finished.
    pub epoch: u64,
    /// Where the data stands, in the middle of an epoch too.
    pub sampler: Option<SamplerState>,
    /// The state of loss scaling.
    pub scaler: Option<GradScalerState>,
    /// What every random draw comes from: see [`step_seed`].
    pub seed: u64,
    /// The ranks that trained.
    pub world_size: u64,
    /// What keep-best compares; a NaN is as none.
    pub metric: Option<f64>,
    /// The configuration of the run.
    pub config: Value,
    /// The metrics so far.
    pub history: Value,
    /// Anything else that the caller must find again: the scheduler, counters, names.
    pub extra: Map<String, Value>,
}

/// How far the data of an epoch is consumed.
///
/// The order of an epoch is a function of `seed`, `epoch` and `dataset_len`, so `images` is all that a resume must
/// skip, on any number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplerState {
    /// The epoch that is under way.
    pub epoch: u64,
    /// Images of all ranks that were consumed in it.
    pub images: u64,
    /// What the order is drawn from.
    pub seed: u64,
    /// Samples in the data set.
    pub dataset_len: u64,
    /// The ranks that shared them.
    pub world_size: u64,
    /// Images in a batch of one rank.
    pub batch_size: u64,
    /// Batches of one optimizer step.
    pub accumulate: u64,
}

/// The seed of the random draws of `rank` in `step`: the same whenever it is asked, so that a training that resumes
/// there draws the same numbers, and unrelated for steps and ranks beside each other.
///
/// Three rounds of splitmix64's output function over `seed`, `step` and `rank`.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
pub fn step_seed(seed: u64, step: u64, rank: u64) -> u64 {
    [step, rank].into_iter().fold(mix(seed), |state, value| mix(state ^ mix(value)))
}

/// splitmix64: a step by the golden ratio, then the finalizer.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
