//! [`SyncBatchNorm`]: the layer.

use std::fmt;

use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{
    Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor, RunningState,
};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor, assert_shape};
use serde::{Deserialize, Serialize};

use super::CONTAINER;
use super::connect::group_in_scope;
use crate::backends;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::ops::{BatchNormSettings, Call, CollectiveBackend};
use crate::site;

/// Which variance of a training batch enters the running variance.
///
/// Training normalises with the biased one either way, so this shows in evaluation only: with `n` values per channel
/// the two differ by the factor `n / (n - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunningVariance {
    /// `Σ (x - mean)² / (n - 1)`, as PyTorch's, with the `n` of all ranks.
    Unbiased,
    /// `Σ (x - mean)² / n`, as burn-nn's `BatchNorm`.
    Biased,
}

/// Configuration of a [`SyncBatchNorm`].
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// Channels of the input; at least 1.
    pub num_features: usize,
    /// What is added to the variance under the root; finite and positive.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The weight of a new batch in the running statistics, in `[0, 1]`.
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Which variance of a training batch enters the running variance.
    #[config(default = "RunningVariance::Unbiased")]
    pub running_variance: RunningVariance,
    /// Whether the layer takes the statistics of all ranks once it is connected to a group. If not, it is a fused batch
    /// norm of this process alone, and [`connect`](super::connect()) passes it by.
    #[config(default = true)]
    pub synchronized: bool,
}

impl SyncBatchNormConfig {
    /// Makes a layer with gamma 1, beta 0, running mean 0 and running variance 1, without a group.
    ///
    /// # Panics
    /// If `num_features` is zero, `epsilon` not finite and positive, or `momentum` outside `[0, 1]`.
    pub fn init(&self, device: &Device) -> SyncBatchNorm {
        let norm = BatchNormConfig::new(self.num_features)
            .with_epsilon(self.epsilon)
            .with_momentum(self.momentum)
            .init(device);
        SyncBatchNorm {
            norm,
            running_variance: self.running_variance,
            synchronized: self.synchronized,
            group: None,
        }
    }
}

/// Batch normalisation with the statistics of all ranks of a group, or of this process without one.
///
/// `y = (x - E[x]) / sqrt(Var[x] + ε) γ + β`, per channel. Training takes mean and biased variance of the joined batch
/// of all ranks and moves the running statistics, `running = (1 - momentum) running + momentum batch`. On a device
/// without autodiff, or where the layer is frozen, it takes the running ones and talks to nobody.
///
/// Input in half precision gives output in half precision; statistics, and gamma and beta where they are f32, stay f32.
///
/// On GPUs with NCCL the statistics are gathered and merged there, and nothing is read back to the host. The ranks of a
/// group are then all on GPUs.
///
/// As in burn-nn, the running statistics that [`RunningState::value`] gives are one update behind until
/// [`valid`](Module::valid).
///
/// Records are those of burn-nn's `BatchNorm`, whose parameters this holds, and convert to and from it.
///
/// Source: S. Ioffe, C. Szegedy, "Batch Normalization", arXiv:1502.03167; `torch.nn.SyncBatchNorm`.
// `Module` is written by hand: the derive would put the field's name into every path (`bn1.norm.gamma`), so that records
// would no longer match burn-nn's nor torchvision's keys, and `map` must look for a group.
#[derive(Clone, Debug)]
pub struct SyncBatchNorm {
    /// Gamma, beta, running statistics, momentum and epsilon.
    pub norm: BatchNorm,
    running_variance: RunningVariance,
    synchronized: bool,
    group: Option<ProcessGroup>,
}

impl From<BatchNorm> for SyncBatchNorm {
    /// A synchronized layer with the values of `norm`, without a group.
    fn from(norm: BatchNorm) -> Self {
        Self { norm, running_variance: RunningVariance::Unbiased, synchronized: true, group: None }
    }
}

impl SyncBatchNorm {
    /// Takes the statistics of all ranks of `group` from now on, whatever the configuration says.
    pub fn with_group(self, group: &ProcessGroup) -> Self {
        Self { synchronized: true, group: Some(group.clone()), ..self }
    }

    /// Leaves the group: the layer takes the statistics of this process until it is connected again.
    pub fn without_group(self) -> Self {
        Self { group: None, ..self }
    }

    /// The group whose batches are normalised together.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Whether the layer takes the statistics of all ranks once it is connected to a group.
    pub fn is_synchronized(&self) -> bool {
        self.synchronized
    }

    /// Normalises each channel of `input`. In training with a group this is a collective, and so is differentiating
    /// through the result.
    ///
    /// What [`try_forward`](Self::try_forward) returns as an error ends the group here, so that the next collective on it
    /// returns the error, on all ranks; the output is then that of this rank's statistics.
    ///
    /// # Shapes
    /// Input and output `[batch, channels, ..]` of rank 2 or more. All but `channels` may differ between ranks, and be 0.
    ///
    /// # Panics
    /// If the number of channels is not the layer's; without a group, for one value per channel in training.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (output, outcome) = self.normalize(input);
        match (outcome, &self.group) {
            (Ok(()), _) => {}
            (Err(error), Some(group)) => {
                group.abort(&format!("rank {} failed in a batch norm: {error}", group.rank()));
            }
            (Err(error), None) => panic!("{error}"),
        }
        output
    }

    /// As [`forward`](Self::forward), with the error returned at once. A backward pass still has no caller to return an
    /// error to: it ends the group.
    ///
    /// # Errors
    /// [`Error::OneValuePerChannel`], on all ranks, where the joined batch has a single value per channel, which training
    /// cannot normalise; what [`ProcessGroup::all_gather`] returns; [`Error::TensorRead`].
    ///
    /// # Panics
    /// If the number of channels is not the layer's.
    #[track_caller]
    pub fn try_forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        backends::check()?;
        let (output, outcome) = self.normalize(input);
        outcome.map(|()| output)
    }

    #[track_caller]
    fn normalize<const D: usize>(&self, input: Tensor<D>) -> (Tensor<D>, Result<()>) {
        let [channels] = self.norm.gamma.lazy_shape().dims();
        assert_shape!(input, [_, channels, ..]);
        if !(input.device().is_autodiff() && self.norm.training.is_enabled()) {
            return (self.normalize_by_running(input), Ok(()));
        }
        let _site = site::enter();
        let call = self.group.as_ref().map(Call::new);
        let settings = BatchNormSettings { epsilon: self.norm.epsilon, call: call.clone() };
        let (gamma, beta) = (self.norm.gamma.val(), self.norm.beta.val());
        let (output, mean, variance, count) = Dispatch::group_batch_norm(
            input.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            settings,
        );
        let outcome = match call.map_or(Ok(()), |call| call.result()) {
            Ok(()) if count == 1 => Err(Error::OneValuePerChannel),
            outcome => outcome,
        };
        if outcome.is_ok() && count > 0 {
            self.move_running(Tensor::from_dispatch(mean), Tensor::from_dispatch(variance), count);
        }
        (Tensor::from_dispatch(output), outcome)
    }

    /// Burn's own operation, so that an export sees a batch norm.
    fn normalize_by_running<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (dtype, own) = (input.dtype(), self.norm.gamma.val().dtype());
        if dtype == own {
            return self.norm.forward(input);
        }
        self.norm.forward(input.cast(own)).cast(dtype)
    }

    /// Moves the running statistics towards those of a batch of `count` values per channel.
    fn move_running(&self, mean: Tensor<1>, variance: Tensor<1>, count: u64) {
        let variance = match self.running_variance {
            RunningVariance::Unbiased => variance.mul_scalar(count as f64 / (count - 1) as f64),
            RunningVariance::Biased => variance,
        };
        let momentum = self.norm.momentum;
        let advance = |running: &RunningState<Tensor<1>>, batch: Tensor<1>| {
            let old = running.value_sync().to_device(&batch.device());
            let batch = batch.cast(old.dtype());
            running.update(old.mul_scalar(1.0 - momentum).add(batch.mul_scalar(momentum)).detach());
        };
        advance(&self.norm.running_mean, mean);
        advance(&self.norm.running_var, variance);
    }
}

impl Module for SyncBatchNorm {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.norm.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self { norm: self.norm.fork(device), ..self }
    }

    fn to_device(self, device: &Device) -> Self {
        Self { norm: self.norm.to_device(device), ..self }
    }

    fn train(self) -> Self {
        Self { norm: self.norm.train(), ..self }
    }

    fn valid(&self) -> Self {
        Self { norm: self.norm.valid(), ..self.clone() }
    }

    fn materialize(self) -> Self {
        Self { norm: self.norm.materialize(), ..self }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        // Its parameters report burn-nn's layer as their container, so that records are read as that layer's; this tells
        // the two apart where it matters, since only this one takes half input.
        visitor.enter_module("", CONTAINER);
        visitor.exit_module("", CONTAINER);
        self.norm.visit(visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let group = if self.synchronized { group_in_scope(self.group) } else { self.group };
        Self { norm: self.norm.map(mapper), group, ..self }
    }
}

impl fmt::Display for SyncBatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ModuleDisplay::format(self, Default::default()))
    }
}

impl ModuleDisplayDefault for SyncBatchNorm {
    fn content(&self, content: Content) -> Option<Content> {
        let ranks = self.group.as_ref().map_or(1, ProcessGroup::world_size);
        self.norm
            .custom_content(content)?
            .add("synchronized", &self.synchronized)
            .add("ranks", &ranks)
            .optional()
    }
}

impl ModuleDisplay for SyncBatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        self.norm.custom_settings()
    }
}
