//! [`DistributedDataParallel`]: what a training loop talks to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::communication::{Communication, CommunicationHook, HookState};
use super::config::{BucketStorage, DdpConfig, UnevenInputs};
use super::construction::{self, Prepared};
use super::events::EventLog;
use super::hand_out::gradients;
use super::lift::Lifts;
use super::reducer::Reducer;
use super::replicate::{self, Covered};
use super::storage::Wire;
use super::{module_hook, uneven};
use crate::amp::LossScale;
use crate::backends;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site;

/// Data-parallel training of one model by all ranks of a group: each rank runs its own batches, gradients are
/// averaged over ranks during the backward pass, and every rank takes the same optimizer step.
///
/// `gradient = 1/n Σ_rank 1/k Σ_micro-batch dL/dp`, with `n` ranks and `k` backward passes since the last reduction.
///
/// One instance serves one model on one rank. All ranks must call its methods in the same order.
///
/// On GPUs gradients are averaged without a trip through host memory, see [`ddp`](super). The model may also have its parts
/// on several devices, such as a large embedding in host memory and the rest on a GPU: each gradient is then reduced
/// through host memory and returns to its parameter's device. The model's `forward` moves what
/// passes between them; `Tensor::to_device` is differentiable. Ranks may place their parts differently. The example
/// `hybrid` of `burn-nccl-models` is such a model. (PyTorch: `device_ids=None`.)
///
/// Source: `torch.nn.parallel.DistributedDataParallel`; S. Li et al., "PyTorch Distributed: Experiences on
/// Accelerating Data Parallel Training", VLDB 2020.
pub struct DistributedDataParallel {
    group: ProcessGroup,
    config: DdpConfig,
    reducer: Arc<Reducer>,
    lifts: Lifts,
    /// Where gradients are averaged: never `Auto`.
    bucket_storage: BucketStorage,
    /// Whether values go from device to device.
    broadcasts: bool,
    exposed: Duration,
}

impl DistributedDataParallel {
    /// Checks that all ranks hold the same `model`, gives every rank rank 0's values, and plans the buckets. Synchronized
    /// [`SyncBatchNorm`](crate::SyncBatchNorm) layers without a group are connected to `group`.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`] on every rank where names, shapes, element types or options differ; [`Error::Device`] on
    /// every rank where GPUs were told different transports, or the model has synchronized layers and is on a GPU of some
    /// ranks only, and where NCCL cannot be had; [`Error::NothingToTrain`] where no parameter requires gradients;
    /// [`Error::SyncBatchNormOption`] where `config` would let ranks skip a synchronized layer;
    /// [`Error::CommunicationHookRefused`] where a setting of the communication hook cannot be meant; what the group's
    /// collectives return.
    #[track_caller]
    pub fn new<M: Module>(model: M, group: &ProcessGroup, config: &DdpConfig) -> Result<(Self, M)> {
        Self::build(model, group, config, config.communication.hook(), Wire::of(&config.communication))
    }

    /// As [`new`](Self::new), with a communication hook of your own in the place of [`DdpConfig::communication`], which
    /// stays at [`Communication::AllReduce`]. PyTorch: `register_comm_hook`.
    ///
    /// # Errors
    /// As [`new`](Self::new), [`Error::ModelMismatch`] also where the hooks' names differ;
    /// [`Error::CommunicationHookRefused`] where the hook refuses the model, or `config` asks for another hook.
    #[track_caller]
    pub fn with_communication_hook<M: Module>(
        model: M,
        group: &ProcessGroup,
        config: &DdpConfig,
        hook: Box<dyn CommunicationHook>,
    ) -> Result<(Self, M)> {
        if config.communication != Communication::AllReduce {
            let reason = format!(
                "DdpConfig::communication is {:?} already; leave it at Communication::AllReduce",
                config.communication
            );
            return Err(Error::CommunicationHookRefused { hook: hook.name(), reason });
        }
        Self::build(model, group, config, hook, None)
    }

    #[track_caller]
    fn build<M: Module>(
        model: M,
        group: &ProcessGroup,
        config: &DdpConfig,
        hook: Box<dyn CommunicationHook>,
        wire: Option<Wire>,
    ) -> Result<(Self, M)> {
        let _site = site::enter();
        backends::check()?;
        let (prepared, model) = construction::prepare(model, group, config, hook, wire)?;
        let (group, config) = (group.clone(), config.clone());
        let Prepared { reducer, lifts, bucket_storage, broadcasts } = prepared;
        let exposed = Duration::ZERO;
        Ok((Self { group, config, reducer, lifts, bucket_storage, broadcasts, exposed }, model))
    }

    /// The group that gradients are reduced over.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Where gradients are averaged, on all ranks alike: never [`BucketStorage::Auto`].
    pub fn bucket_storage(&self) -> BucketStorage {
        self.bucket_storage
    }

    /// A copy of `model` to run one forward pass on. It shares the values and the running statistics of `model`, and
    /// serves exactly one [`backward`](Self::backward) or [`no_sync`](Self::no_sync).
    ///
    /// # Errors
    /// [`Error::ModelChanged`] where the trainable parameters are no longer those at construction.
    pub fn hook<M: Module>(&self, model: &M) -> Result<M> {
        module_hook::hooked(model.clone(), self.reducer.plan(), &self.lifts, &self.reducer)
    }

    /// Runs the backward pass of `loss` and returns the gradients of `model`, averaged over all ranks and over the
    /// micro-batches since the last reduction.
    ///
    /// # Errors
    /// [`Error::UnusedParameters`], [`Error::UnevenInputs`] (both on all ranks), and what a collective returns.
    #[track_caller]
    pub fn backward<M: Module>(&mut self, loss: &Tensor<1>, model: &M) -> Result<GradientsParams> {
        self.reduce_during(model, || drop(loss.backward())).map(|((), gradients)| gradients)
    }

    /// As [`backward`](Self::backward), for code that calls `Tensor::backward` itself: `run` must do so exactly once,
    /// on a loss of a hooked model.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    #[track_caller]
    pub fn reduce_during<M: Module, R>(
        &mut self,
        model: &M,
        run: impl FnOnce() -> R,
    ) -> Result<(R, GradientsParams)> {
        let _site = site::enter();
        let active = uneven::exchange(&self.group, self.config.uneven_inputs, true)?;
        self.reducer.begin_reduction(self.divisor(active)).map_err(|error| self.abort_with(error))?;
        let guard = AbortOnPanic(&self.group);
        let output = run();
        drop(guard);
        let end_of_backward = Instant::now();
        let reduced = self.reducer.finish()?;
        self.exposed = end_of_backward.elapsed();
        Ok((output, gradients(model, reduced)))
    }

    /// Runs the backward pass of `loss` and keeps its gradients on this rank, to be added to those of the next
    /// [`backward`](Self::backward), which divides by the number of passes. PyTorch: `no_sync()`.
    ///
    /// # Errors
    /// What a hook met, such as a gradient that cannot be read.
    pub fn no_sync(&mut self, loss: &Tensor<1>) -> Result<()> {
        self.accumulate_during(|| drop(loss.backward()))
    }

    /// As [`no_sync`](Self::no_sync), for code that calls `Tensor::backward` itself.
    ///
    /// # Errors
    /// As [`no_sync`](Self::no_sync).
    pub fn accumulate_during<R>(&mut self, run: impl FnOnce() -> R) -> Result<R> {
        self.reducer.begin_accumulation()?;
        let guard = AbortOnPanic(&self.group);
        let output = run();
        drop(guard);
        self.reducer.end_accumulation()?;
        Ok(output)
    }

    /// Takes part in the steps of ranks that still have data, once this rank has none. Every rank calls it after its
    /// last batch until it returns `None`, and takes the optimizer step with what it returns, so that parameters and
    /// optimizer state stay equal on all ranks:
    ///
    /// ```
    /// # use burn::{module::Module, optim::{GradientsParams, ModuleOptimizer}};
    /// # use burn_nccl::{DistributedDataParallel, Error};
    /// # fn end_of_epoch<M: Module>(
    /// #     ddp: &mut DistributedDataParallel, mut model: M, optimizer: &mut ModuleOptimizer, learning_rate: f64,
    /// # ) -> Result<M, Error> {
    /// while let Some(gradients) = ddp.shadow(&model)? {
    ///     model = optimizer.step(learning_rate, model, gradients);
    /// }
    /// # Ok(model)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnevenInputs`] on all ranks in [`UnevenInputs::Strict`] mode; [`Error::UnreducedGradients`] where
    /// micro-batches were accumulated and never reduced.
    #[track_caller]
    pub fn shadow<M: Module>(&mut self, model: &M) -> Result<Option<GradientsParams>> {
        let _site = site::enter();
        match self.reducer.accumulated() {
            0 => {}
            micro_batches => return Err(self.abort_with(Error::UnreducedGradients { micro_batches })),
        }
        if self.config.uneven_inputs == UnevenInputs::Even {
            return Ok(None);
        }
        let active = uneven::exchange(&self.group, self.config.uneven_inputs, false)?;
        if active == 0 {
            return Ok(None);
        }
        self.reducer.begin_shadow(self.divisor(active)).map_err(|error| self.abort_with(error))?;
        let reduced = self.reducer.finish()?;
        Ok(Some(gradients(model, reduced)))
    }

    /// Gives every rank rank 0's running statistics (and frozen parameters).
    ///
    /// PyTorch does so before every forward pass. Training does not read running statistics, so doing it once before
    /// evaluating or saving gives the same numbers and costs nothing in the loop.
    ///
    /// # Errors
    /// What [`ProcessGroup::broadcast`] returns.
    #[track_caller]
    pub fn sync_buffers<M: Module>(&self, model: M) -> Result<M> {
        let _site = site::enter();
        replicate::broadcast(model, Covered::Buffers, self.broadcasts, &self.group)
    }

    /// Tells the communication hook by what factor the losses are multiplied: `scaler.loss_scale()`, before training, on all
    /// ranks. A hook that keeps something of a gradient for later steps, as
    /// [`PowerSgd`](super::communication::PowerSgd) does, keeps it in the units of the unscaled loss then; otherwise a
    /// change of the scale would weigh it wrongly.
    pub fn set_loss_scale(&mut self, loss_scale: LossScale) {
        self.reducer.set_loss_scale(loss_scale);
    }

    /// What the communication hook keeps from step to step, if anything, for a checkpoint: each rank has its own.
    /// Call it between steps.
    pub fn hook_state(&self) -> Option<HookState> {
        self.reducer.hook_state()
    }

    /// Goes on with what the communication hook had kept: each rank with its own, all at the same time.
    ///
    /// # Errors
    /// [`Error::CommunicationHookState`] where it does not fit on any rank, and then no rank has loaded anything; what the
    /// group's collectives return.
    pub fn load_hook_state(&mut self, state: &HookState) -> Result<()> {
        self.reducer.load_hook_state(state)
    }

    /// The log of what happens in each step; it is off until started.
    pub fn events(&self) -> &EventLog {
        self.reducer.events()
    }

    /// Seconds of the last reduction that the backward pass did not hide: from its end until every gradient was
    /// there.
    ///
    /// On GPUs with [`StreamOrdering::ContextEvents`](crate::transport::StreamOrdering::ContextEvents) nobody waits on the
    /// host: these are the seconds until the work has been handed to the GPU, and say nothing about how long it takes
    /// there, nor what of it the backward pass hides.
    pub fn last_exposed_seconds(&self) -> f64 {
        self.exposed.as_secs_f64()
    }

    /// Ends the group for an error that only this rank knows of: the others are on their way into a reduction.
    fn abort_with(&self, error: Error) -> Error {
        self.group.abort(&format!("rank {} cannot go on: {error}", self.group.rank()));
        error
    }

    fn divisor(&self, active: usize) -> usize {
        match self.config.uneven_inputs {
            UnevenInputs::JoinActive => active,
            UnevenInputs::Even | UnevenInputs::Strict | UnevenInputs::JoinWorld => self.group.world_size(),
        }
    }
}

/// Ends the group when the code it guards panics, so that the other ranks learn of it now and not at the deadline.
struct AbortOnPanic<'a>(&'a ProcessGroup);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(&format!("rank {} panicked in its backward pass", self.0.rank()));
        }
    }
}
