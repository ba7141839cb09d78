//! Training batch norm over the batches of all ranks: the part that every backend shares.
//!
//! Statistics come from one all-gather, the gradient of the input from one all-reduce. Where NCCL moves the tensors, they
//! are gathered and merged on the device, and nothing is read back from it; else the host merges them in f64. A single
//! process needs neither.
//!
//! Source: `torch/nn/modules/_functions.py`, `SyncBatchNorm`.

pub(crate) mod composed;
mod merge;
mod statistics;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType as BurnDType, Slice, TensorData};

use crate::backends::host;
use crate::error::Result;
use crate::ops::{BatchNormSettings, Call, CollectiveBackend, Route};
use crate::transport::{DType, ReduceOp};
use composed::{cast, statistics_dtype};
use statistics::Statistics;

/// What the forward pass made: the output, and the batch that it was normalised with.
pub(crate) struct Normalized<B: CollectiveBackend> {
    pub(crate) output: FloatTensor<B>,
    /// The mean of each channel over all ranks.
    pub(crate) mean: FloatTensor<B>,
    /// The biased variance of each channel over all ranks.
    pub(crate) variance: FloatTensor<B>,
    /// What the backward pass needs of it.
    pub(crate) batch: Batch<B>,
}

/// What the backward pass needs of the forward pass, beside input and gamma.
#[derive(Clone, Debug)]
pub(crate) struct Batch<B: CollectiveBackend> {
    mean: FloatTensor<B>,
    inverse_deviation: FloatTensor<B>,
    /// Values per channel on all ranks together.
    pub(crate) count: u64,
    beta_dtype: BurnDType,
    /// The call of the adjoint, where there are other ranks.
    call: Option<Call>,
}

/// The statistics of all values of a batch.
struct Joined<B: Backend> {
    mean: FloatTensor<B>,
    /// The biased variance.
    variance: FloatTensor<B>,
    count: u64,
}

/// The gradients of a batch norm. Those of gamma and beta are this rank's; data-parallel training averages them.
pub(crate) struct BatchNormGradients<B: CollectiveBackend> {
    pub(crate) x: FloatTensor<B>,
    pub(crate) gamma: FloatTensor<B>,
    pub(crate) beta: FloatTensor<B>,
}

/// `y = (x - mean) gamma / sqrt(variance + epsilon) + beta` with the statistics of all ranks.
///
/// An error goes to the call of `settings`, and the output is then that of this rank's statistics.
pub(crate) fn forward<B: CollectiveBackend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    settings: &BatchNormSettings,
) -> Normalized<B> {
    let dtype = statistics_dtype(x.dtype());
    let count = (x.shape().num_elements() / x.shape()[1]) as u64;
    let (mean, squares) = B::batch_norm_statistics(x.clone());
    let call = settings.call.as_ref().filter(|call| call.group.world_size() > 1);
    let joined = call.and_then(|call| match join::<B>(mean.clone(), squares.clone(), count, call) {
        Ok(joined) => Some(joined),
        Err(error) => {
            call.fail(error);
            None
        }
    });
    let own = || Joined { mean, variance: B::float_mul_scalar(squares, reciprocal(count).into()), count };
    let Joined { mean, variance, count } = joined.unwrap_or_else(own);

    let deviation = B::float_sqrt(B::float_add_scalar(variance.clone(), settings.epsilon.into()));
    let inverse_deviation = B::float_recip(deviation);
    let beta_dtype = beta.dtype();
    let scale = B::float_mul(cast::<B>(gamma, dtype), inverse_deviation.clone());
    let output = B::batch_norm_normalize(x, mean.clone(), scale, cast::<B>(beta, dtype));
    let call = call.map(|call| call.in_backward());
    let batch = Batch { mean: mean.clone(), inverse_deviation, count, beta_dtype, call };
    Normalized { output, mean, variance, batch }
}

/// The adjoint: with `S = Σ dy` and `P = Σ dy (x - mean)` of this rank, `dbeta = S` and `dgamma = P / σ`; with their
/// sums over ranks and `N` values on all ranks, `dx = gamma / σ (dy - S / N - (x - mean) P / (σ² N))`.
///
/// Every rank takes part in the sum, also where its batch is empty or nothing before this layer is trained.
pub(crate) fn backward<B: CollectiveBackend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
    gamma: FloatTensor<B>,
    batch: Batch<B>,
) -> BatchNormGradients<B> {
    let Batch { mean, inverse_deviation, count, beta_dtype, call } = batch;
    let (dtype, gamma_dtype) = (mean.dtype(), gamma.dtype());
    let (sum, product) = B::batch_norm_gradient_sums(x.clone(), gradient.clone(), mean.clone());
    let gamma_gradient = cast::<B>(B::float_mul(product.clone(), inverse_deviation.clone()), gamma_dtype);
    let beta_gradient = cast::<B>(sum.clone(), beta_dtype);

    let (sum, product) = match call {
        Some(call) => all_reduce::<B>(sum, product, call),
        None => (sum, product),
    };
    let mean_gradient = B::float_mul_scalar(sum, reciprocal(count).into());
    let slope = B::float_mul(product, B::float_mul(inverse_deviation.clone(), inverse_deviation.clone()));
    let slope = B::float_mul_scalar(slope, reciprocal(count).into());
    let scale = B::float_mul(cast::<B>(gamma, dtype), inverse_deviation);
    let x = B::batch_norm_input_gradient(x, gradient, mean, scale, mean_gradient, slope);
    BatchNormGradients { x, gamma: gamma_gradient, beta: beta_gradient }
}

/// `1 / count`; no division by zero where no rank has a value.
fn reciprocal(count: u64) -> f64 {
    1.0 / count.max(1) as f64
}

/// The statistics of all ranks' values, from this rank's.
fn join<B: CollectiveBackend>(
    mean: FloatTensor<B>,
    squares: FloatTensor<B>,
    count: u64,
    call: &Call,
) -> Result<Joined<B>> {
    let part = call.part();
    let route = B::group_route(mean.clone(), part.clone());
    part.result()?;
    if route == Route::Device {
        return merge::gather::<B>(mean, squares, count, call);
    }
    let (device, dtype) = (mean.device(), mean.dtype());
    let statistics = gather::<B>(mean, squares, count, call)?;
    let upload = |values: Vec<f64>| {
        let channels = values.len();
        B::float_from_data(TensorData::new(values, [channels]).convert_dtype(dtype), &device)
    };
    let variance = upload(statistics.variance());
    Ok(Joined { mean: upload(statistics.mean), variance, count: statistics.count })
}

/// As [`join`], by way of the host.
fn gather<B: CollectiveBackend>(
    mean: FloatTensor<B>,
    squares: FloatTensor<B>,
    count: u64,
    call: &Call,
) -> Result<Statistics> {
    let channels = mean.shape()[0];
    // One tensor, so that a GPU is waited for once.
    let data = host::read::<B>(B::float_cat(vec![mean, squares], 0)).inspect_err(|error| {
        // The other ranks wait for statistics that this one will not send.
        call.group.abort(&format!("rank {} failed in a batch norm: {error}", call.group.rank()));
    })?;
    let mut mean: Vec<f64> = data.iter::<f64>().collect();
    let squares = mean.split_off(channels);
    let send = Statistics { count, mean, squares }.to_wire();
    let ranks = call.group.world_size();
    let _site = call.enter();
    let mut received = vec![0.0; send.len() * ranks];
    call.group.all_gather(
        bytemuck::cast_slice(&send),
        bytemuck::cast_slice_mut(&mut received),
        DType::F64,
    )?;
    Ok(Statistics::merge_wire(&received, ranks))
}

/// Both tensors summed over all ranks, in one collective.
fn all_reduce<B: CollectiveBackend>(
    sum: FloatTensor<B>,
    product: FloatTensor<B>,
    call: Call,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let channels = sum.shape()[0];
    let both = B::group_all_reduce(B::float_cat(vec![sum, product], 0), ReduceOp::Sum, call);
    let part = |start: usize| B::float_slice(both.clone(), &[Slice::from(start..start + channels)]);
    (part(0), part(channels))
}
