//! PowerSGD: gradients as products of thin matrices.

mod config;
mod kernels;
mod orthogonal;
mod plan;
mod random;
mod round;
mod state;
#[cfg(test)]
mod tests;

pub use config::PowerSgdConfig;
use round::Round;

use super::{BucketLayout, CommunicationHook, GradientBucket, HookError, HookState};
use crate::group::Reserved;
use crate::transport::{DType, ReduceOp};
use plan::Plan;

/// Averages low-rank approximations of the gradients, and makes up for what they lack in the next step.
///
/// For each weight, as a matrix `M` of its first dimension by the rest, with `Q` from the step before or random:
///
/// ```text
/// M = gradient + error                   this rank's
/// P = orthonormalise(Σ_ranks M Q)        first all-reduce, with the gradients that are not compressed
/// Q = mean_ranks Mᵀ P                    second all-reduce
/// gradient = P Qᵀ                        the same on all ranks
/// error = M - P (Mᵀ P)ᵀ                  this rank's, for the next step
/// ```
///
/// `(rows + columns) * rank` numbers travel instead of `rows * columns`. Vectors, and matrices for which it is not worth
/// it, are averaged whole. Two all-reduces for each bucket; while a bucket is averaged whole (before
/// [`start_step`](PowerSgdConfig::start_step)) one.
///
/// - **Types**: everything is computed in f32. Half gradients are widened, and the average is rounded once; of f64 the
///   precision of f32 remains.
/// - **Memory**, in f32 for each rank: one copy of the compressed gradients for the errors, and three times
///   `(rows + columns) * rank`; half and f64 gradients take another copy.
/// - **Bits** are the same on all ranks, also on different processors: the kernels' sums have a fixed order.
/// - **Error**: PyTorch keeps `M - P Qᵀ` with the mean `Q`, for uncompressed gradients too. Both have the same mean over
///   ranks, on which alone the result depends (the approximation is linear in `M`), but PyTorch's also collects how far this
///   rank is from the others, which grows from step to step and costs precision.
/// - **Infinities and NaN** in a gradient make that gradient NaN on all ranks. Such a step changes nothing that is kept: all
///   ranks see the overflow in what they have averaged, and a [`GradScaler`](crate::amp::GradScaler) skips the step on
///   all of them. In PyTorch the error would be NaN for ever.
/// - **Loss scaling**: the error is kept in the units of the unscaled loss, where the scale is known by
///   [`DistributedDataParallel::set_loss_scale`](crate::DistributedDataParallel::set_loss_scale).
/// - **Unused parameters** and **uneven inputs**: a parameter that no rank used keeps its error for the next time; a rank
///   without data takes part with its error alone.
/// - **Checkpoints**: [`DistributedDataParallel::hook_state`](crate::DistributedDataParallel::hook_state) gives each rank's
///   errors and directions, with which training goes on to the same bits. Without them it begins as at the start, with
///   [`start_step`](PowerSgdConfig::start_step) whole steps and without errors, as PyTorch's does unless its state is saved.
///
/// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
/// Optimization", NeurIPS 2019, algorithms 1 and 2; `powerSGD_hook` of PyTorch.
#[derive(Debug)]
pub struct PowerSgd {
    config: PowerSgdConfig,
    /// Steps so far.
    step: u64,
    buckets: Vec<Bucket>,
}

/// What is kept for a bucket.
#[derive(Debug, Default)]
struct Bucket {
    plan: Plan,
    /// The parameters' names, in the order of the plan's matrices.
    names: Vec<String>,
    /// Of all matrices, in the units of the unscaled loss. Empty before there is one.
    errors: Vec<f32>,
    /// Mean `Q` of the last step of all matrices, empty before there is one.
    directions: Vec<f32>,
    round: Round,
}

impl PowerSgd {
    /// A hook for one training.
    pub fn new(config: PowerSgdConfig) -> Self {
        Self { config, step: 0, buckets: Vec::new() }
    }

    fn compresses(&self) -> bool {
        self.step >= self.config.start_step as u64
    }
}

impl CommunicationHook for PowerSgd {
    fn name(&self) -> String {
        let options = serde_json::to_string(&self.config).unwrap_or_default();
        format!("powersgd {options}")
    }

    fn prepare(&mut self, buckets: &[BucketLayout], _world_size: usize) -> Result<(), HookError> {
        self.config.check()?;
        let bucket = |layout: &BucketLayout| {
            let plan = Plan::new(layout, &self.config);
            let name = |matrix: &plan::Matrix| layout.parameters[matrix.parameter].name.clone();
            Bucket { names: plan.matrices.iter().map(name).collect(), plan, ..Bucket::default() }
        };
        self.buckets = buckets.iter().map(bucket).collect();
        Ok(())
    }

    fn collectives(&self) -> u64 {
        2
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        let (dtype, op) = (bucket.dtype(), bucket.op());
        if !self.compresses() {
            return Ok(collectives.all_reduce(bucket.bytes_mut(), dtype, op)?);
        }
        let index = bucket.index();
        let Bucket { plan, errors, directions, round, .. } = &mut self.buckets[index];
        round.begin(plan, bucket);
        round.choose_directions(plan, directions, &self.config, [self.step, index as u64]);
        let factor = if op == ReduceOp::Sum { collectives.world_size() as f32 } else { 1.0 };
        round.project(plan, bucket, errors, factor);
        collectives.all_reduce(bytemuck::cast_slice_mut(&mut round.sent), DType::F32, ReduceOp::Sum)?;
        let divisor = if op == ReduceOp::Sum { 1 } else { collectives.world_size() };
        round.take_whole(plan, bucket, divisor);
        round.project_back(plan, bucket, self.config.orthogonalization_epsilon);
        if !round.mean.is_empty() {
            collectives.all_reduce(bytemuck::cast_slice_mut(&mut round.mean), DType::F32, ReduceOp::Mean)?;
        }
        round.look_at_mean(plan, dtype);
        Ok(())
    }

    fn finish(&mut self, buckets: &mut [GradientBucket<'_>]) -> Result<(), HookError> {
        if self.compresses() {
            // All ranks find the same, in what they have averaged.
            let commits = self.buckets.iter().all(|kept| kept.round.is_finite());
            for (kept, bucket) in self.buckets.iter_mut().zip(buckets) {
                kept.finish(bucket, commits, &self.config);
            }
        }
        self.step += 1;
        Ok(())
    }

    fn state(&self) -> Option<HookState> {
        Some(state::save(self.step, &self.config, &self.buckets))
    }

    fn load_state(&mut self, state: &HookState) -> Result<(), HookError> {
        self.step = state::load(state, &self.config, &mut self.buckets)?;
        Ok(())
    }
}

impl Bucket {
    fn finish(&mut self, bucket: &mut GradientBucket<'_>, commits: bool, config: &PowerSgdConfig) {
        let Self { plan, errors, directions, round, .. } = self;
        if commits && config.error_feedback {
            errors.resize(plan.errors, 0.0);
        }
        for (number, matrix) in plan.matrices.iter().enumerate() {
            let keeps = commits && config.error_feedback && bucket.is_used(matrix.parameter);
            let error = keeps.then(|| &mut errors[matrix.error.clone()]);
            round.finish(number, matrix, bucket, error);
        }
        round.end(bucket);
        if commits && config.warm_start {
            directions.clear();
            directions.extend_from_slice(&round.mean);
        }
    }
}
