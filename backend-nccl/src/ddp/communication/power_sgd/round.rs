//! One bucket in one step.

use super::PowerSgdConfig;
use super::kernels::{self, Factors, Load};
use super::orthogonal::orthonormalise;
use super::plan::{Matrix, Plan};
use super::random;
use crate::ddp::arithmetic;
use crate::ddp::communication::GradientBucket;
use crate::transport::DType;

/// What a step needs of a bucket between its launch and its end. Memory is kept for the next step.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The bucket in f32, where its own type is another.
    wide: Vec<f32>,
    /// What the first all-reduce carries: gradients that are not compressed, then `P`.
    pub(super) sent: Vec<f32>,
    /// Where `P` begins in it.
    p: usize,
    /// `Q` to begin with, then `Mᵀ P` of this rank.
    own: Vec<f32>,
    /// The mean of it over ranks.
    pub(super) mean: Vec<f32>,
    /// The matrices with an infinity or NaN on any rank.
    lost: Vec<bool>,
    whole_is_finite: bool,
}

impl Round {
    pub(super) fn begin(&mut self, plan: &Plan, bucket: &GradientBucket<'_>) {
        self.p = plan.whole_elements();
        self.sent.resize(self.p + plan.p, 0.0);
        self.own.resize(plan.q, 0.0);
        self.mean.resize(plan.q, 0.0);
        self.lost.clear();
        self.lost.resize(plan.matrices.len(), false);
        if bucket.dtype() != DType::F32 {
            self.wide.resize(bucket.bytes().len() / bucket.dtype().size_bytes(), 0.0);
            arithmetic::widen(bucket.bytes(), bucket.dtype(), &mut self.wide);
        }
    }

    /// Takes the directions of the step before, or random ones, and makes them orthonormal.
    pub(super) fn choose_directions(
        &mut self,
        plan: &Plan,
        before: &[f32],
        config: &PowerSgdConfig,
        [step, bucket]: [u64; 2],
    ) {
        for (number, matrix) in plan.matrices.iter().enumerate() {
            let q = &mut self.own[matrix.q.clone()];
            let stream = [step, bucket, number as u64];
            match before.get(matrix.q.clone()) {
                Some(before) => q.copy_from_slice(before),
                None => random::fill(q, config.seed, stream),
            }
            orthonormalise(q, matrix.columns, config.orthogonalization_epsilon);
            // A gradient of a lower rank, or of zeros, leaves columns of zeros, which would stay so for ever.
            let is_gone = |column: &[f32]| column.iter().all(|value| *value == 0.0);
            if q.chunks_exact(matrix.columns).any(is_gone) {
                let mut drawn = vec![0.0; q.len()];
                random::fill(&mut drawn, config.seed, stream);
                let columns = q.chunks_exact_mut(matrix.columns).zip(drawn.chunks_exact(matrix.columns));
                columns
                    .filter(|(column, _)| is_gone(column))
                    .for_each(|(column, drawn)| column.copy_from_slice(drawn));
                orthonormalise(q, matrix.columns, config.orthogonalization_epsilon);
            }
        }
    }

    /// Loads `M`, and fills what the first all-reduce carries.
    pub(super) fn project(
        &mut self,
        plan: &Plan,
        bucket: &mut GradientBucket<'_>,
        errors: &[f32],
        factor: f32,
    ) {
        let scale = bucket.loss_scale();
        let values = values(&mut self.wide, bucket);
        let (whole, p) = self.sent.split_at_mut(self.p);
        let mut start = 0;
        for (_, elements) in &plan.whole {
            whole[start..start + elements.len()].copy_from_slice(&values[elements.clone()]);
            start += elements.len();
        }
        for matrix in &plan.matrices {
            let load = Load { factor, error: errors.get(matrix.error.clone()).unwrap_or_default(), scale };
            let (q, p) = (&self.own[matrix.q.clone()], &mut p[matrix.p.clone()]);
            kernels::project(&mut values[matrix.elements.clone()], load, q, p, matrix.columns);
        }
    }

    /// Puts the gradients that were not compressed back as averages.
    pub(super) fn take_whole(&mut self, plan: &Plan, bucket: &mut GradientBucket<'_>, divisor: usize) {
        let whole = &mut self.sent[..self.p];
        whole.iter_mut().for_each(|value| *value /= divisor as f32);
        self.whole_is_finite = are_within(whole, f32::MAX);
        let values = values(&mut self.wide, bucket);
        let mut start = 0;
        for (_, elements) in &plan.whole {
            values[elements.clone()].copy_from_slice(&whole[start..start + elements.len()]);
            start += elements.len();
        }
    }

    /// Orthonormalises `P` and fills what the second all-reduce carries.
    pub(super) fn project_back(&mut self, plan: &Plan, bucket: &mut GradientBucket<'_>, epsilon: f32) {
        let dtype = bucket.dtype();
        let values = values(&mut self.wide, bucket);
        let p = &mut self.sent[self.p..];
        for (matrix, lost) in plan.matrices.iter().zip(&mut self.lost) {
            let (p, own) = (&mut p[matrix.p.clone()], &mut self.own[matrix.q.clone()]);
            *lost = !are_within(p, f32::MAX);
            if *lost {
                own.fill(0.0);
                continue;
            }
            orthonormalise(p, matrix.rows, epsilon);
            kernels::project_back(&values[matrix.elements.clone()], p, own, matrix.columns);
        }
        self.mean.copy_from_slice(&self.own);
        // What a rank alone finds too large, the others must learn of.
        for matrix in &plan.matrices {
            if !are_within(&self.own[matrix.q.clone()], limit(matrix, dtype)) {
                self.mean[matrix.q.clone()].fill(f32::NAN);
            }
        }
    }

    /// Finds the matrices whose average is not finite, or would not be.
    pub(super) fn look_at_mean(&mut self, plan: &Plan, dtype: DType) {
        for (matrix, lost) in plan.matrices.iter().zip(&mut self.lost) {
            *lost |= !are_within(&self.mean[matrix.q.clone()], limit(matrix, dtype));
        }
    }

    /// Whether nothing in the averaged bucket is infinite or NaN. The same on all ranks.
    pub(super) fn is_finite(&self) -> bool {
        self.whole_is_finite && !self.lost.contains(&true)
    }

    /// Puts the average of a matrix in the place of `M`, and what this rank lacks in `error`.
    pub(super) fn finish(
        &mut self,
        number: usize,
        matrix: &Matrix,
        bucket: &mut GradientBucket<'_>,
        error: Option<&mut [f32]>,
    ) {
        let inverse_scale = 1.0 / bucket.loss_scale();
        let values = &mut values(&mut self.wide, bucket)[matrix.elements.clone()];
        if self.lost[number] {
            values.fill(f32::NAN);
            return;
        }
        let factors = Factors {
            p: &self.sent[self.p..][matrix.p.clone()],
            own: &self.own[matrix.q.clone()],
            mean: &self.mean[matrix.q.clone()],
        };
        kernels::finish(values, factors, matrix.columns, error.map(|error| (error, inverse_scale)));
    }

    /// Rounds the bucket to its own type.
    pub(super) fn end(&mut self, bucket: &mut GradientBucket<'_>) {
        let dtype = bucket.dtype();
        if dtype != DType::F32 {
            arithmetic::narrow(&self.wide, bucket.bytes_mut(), dtype);
        }
    }
}

/// The bucket in f32: itself, or its wide copy.
fn values<'a>(wide: &'a mut [f32], bucket: &'a mut GradientBucket<'_>) -> &'a mut [f32] {
    match bucket.dtype() {
        DType::F32 => bytemuck::cast_slice_mut(bucket.bytes_mut()),
        _ => wide,
    }
}

/// Up to here no sum of `rank` products with elements of unit columns exceeds the type.
fn limit(matrix: &Matrix, dtype: DType) -> f32 {
    let largest = if dtype == DType::F16 { half::f16::MAX.to_f32() } else { f32::MAX };
    largest / (2 * matrix.rank) as f32
}

/// Whether all values are at most `limit` in size; a NaN is not.
fn are_within(values: &[f32], limit: f32) -> bool {
    values.chunks(1024).all(|block| block.iter().fold(true, |all, value| all & (value.abs() <= limit)))
}
