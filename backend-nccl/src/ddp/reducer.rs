//! The reducer: takes gradients as they arrive, launches each bucket as soon as it may, and hands the results out. Where
//! gradients lie meanwhile and what averages them is the [`Storage`]'s matter.
//!
//! Filling happens inside the backward pass, where nothing may panic or block: errors are kept for
//! [`Reducer::finish`]. Buckets launch strictly in index order, whatever order gradients arrive in; ranks whose
//! graphs run in another order would otherwise pair different buckets, which sums garbage or hangs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::agreement::{self, Use};
use super::bucket::BucketPlan;
use super::communication::{Communicator, HookState, Terms};
use super::config::{DdpConfig, UnusedParameters};
use super::events::{DdpEvent, EventLog};
use super::storage::{Averaged, Storage};
use crate::amp::LossScale;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::hook::{ArrivedGradient, GradientSink};
use crate::site::{self, Purpose};
use crate::transport::ReduceOp;

/// What a gradient that arrives is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Outside of any backward pass that the reducer knows of.
    Idle,
    /// A micro-batch whose gradients stay local.
    Accumulate,
    /// The backward pass that ends in a reduction.
    Reduce,
}

/// Gradients of one step after reduction.
pub(crate) struct Reduced {
    /// Of each trainable parameter, if any rank had one for it.
    pub(crate) gradients: Vec<Option<Averaged>>,
}

pub(crate) struct Reducer {
    group: ProcessGroup,
    plan: Arc<BucketPlan>,
    names: Vec<String>,
    unused_parameters: UnusedParameters,
    communicator: Arc<Communicator>,
    events: EventLog,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    storage: Box<dyn Storage>,
    /// How many buckets have been launched in this step.
    launched: usize,
    /// Gradients that each bucket still waits for in this backward pass.
    pending: Vec<usize>,
    /// Whether a parameter's gradient arrived in this backward pass, and since the last reduction.
    fired: Vec<bool>,
    filled: Vec<bool>,
    /// Backward passes since the last reduction, this one not included.
    micro_batches: usize,
    /// Ranks that the sum is divided by; the world size unless some have run out of data.
    divisor: usize,
    /// Whether this rank has a batch in this step.
    has_batch: bool,
    /// Where the factor of the loss is read.
    loss_scale: Option<LossScale>,
    /// The factor of the loss in this step.
    factor: f32,
    error: Option<Error>,
}

impl Reducer {
    pub(crate) fn new(
        group: &ProcessGroup,
        plan: Arc<BucketPlan>,
        names: Vec<String>,
        communicator: Arc<Communicator>,
        storage: Box<dyn Storage>,
        config: &DdpConfig,
    ) -> Self {
        let (buckets, parameters) = (plan.buckets.len(), names.len());
        let state = State {
            phase: Phase::Idle,
            storage,
            launched: 0,
            pending: vec![0; buckets],
            fired: vec![false; parameters],
            filled: vec![false; parameters],
            micro_batches: 0,
            divisor: group.world_size(),
            has_batch: true,
            loss_scale: None,
            factor: 1.0,
            error: None,
        };
        Self {
            group: group.clone(),
            plan,
            names,
            unused_parameters: config.unused_parameters,
            communicator,
            events: EventLog::default(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Starts a backward pass whose gradients stay on this rank.
    pub(crate) fn begin_accumulation(&self) -> Result<()> {
        self.begin(Phase::Accumulate, self.group.world_size(), true)
    }

    /// Starts the backward pass that ends in a reduction. `divisor` is the number of ranks that the mean is over.
    pub(crate) fn begin_reduction(&self, divisor: usize) -> Result<()> {
        self.begin(Phase::Reduce, divisor, true)
    }

    /// Starts a reduction of the other ranks' gradients, to which this rank, without a batch, adds zeros.
    pub(crate) fn begin_shadow(&self, divisor: usize) -> Result<()> {
        self.begin(Phase::Reduce, divisor, false)
    }

    fn begin(&self, phase: Phase, divisor: usize, has_batch: bool) -> Result<()> {
        let mut state = self.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        state.phase = phase;
        state.divisor = divisor;
        state.has_batch = has_batch;
        state.factor = state.loss_scale.as_ref().map_or(1.0, LossScale::factor);
        state.fired.fill(false);
        for (index, bucket) in self.plan.buckets.iter().enumerate() {
            state.pending[index] = bucket.parameters.len();
        }
        state.storage.begin();
        Ok(())
    }

    /// Ends a backward pass without reduction.
    ///
    /// # Errors
    /// The first error that a hook met.
    pub(crate) fn end_accumulation(&self) -> Result<()> {
        let mut state = self.lock();
        state.phase = Phase::Idle;
        state.micro_batches += 1;
        state.error.take().map_or(Ok(()), Err)
    }

    /// The number of backward passes whose gradients wait for a reduction.
    pub(crate) fn accumulated(&self) -> usize {
        self.lock().micro_batches
    }

    /// Launches what the backward pass left over, waits for all buckets and agrees on which parameters were used.
    ///
    /// # Errors
    /// The first error that a hook met, after ending the group; what a collective returns. The step is forgotten then.
    pub(crate) fn finish(&self) -> Result<Reduced> {
        let mut state = self.lock();
        let outcome = self.finish_step(&mut state);
        if outcome.is_err() {
            state.forget();
        }
        outcome
    }

    fn finish_step(&self, state: &mut State) -> Result<Reduced> {
        state.phase = Phase::Idle;
        if let Some(error) = state.error.take() {
            // The other ranks wait for buckets that this one will not send.
            self.group.abort(&format!("rank {} could not reduce its gradients: {error}", self.group.rank()));
            return Err(error);
        }
        self.complete_missing(state);
        self.launch_ready(state)?;
        for index in 0..self.plan.buckets.len() {
            state.storage.wait()?;
            self.events.push(DdpEvent::BucketReduced(index));
        }
        let own: Vec<Use> = state.filled.iter().map(|&filled| Use::of(filled, state.has_batch)).collect();
        let used = agreement::exchange(&self.group, &own, &self.names, self.unused_parameters)?;
        let terms = self.terms(state);
        let gradients = state.storage.hand_out(&used, terms)?;
        state.forget();
        Ok(Reduced { gradients })
    }

    /// Gives parameters without a gradient in this pass what they contribute: zeros, or what earlier micro-batches
    /// left, which still lacks its division.
    fn complete_missing(&self, state: &mut State) {
        let passes = state.micro_batches + 1;
        for (index, slot) in self.plan.slots.iter().enumerate() {
            if state.fired[index] {
                continue;
            }
            if state.filled[index] {
                state.storage.scale(index, 1.0 / passes as f64);
            } else {
                state.storage.clear(index);
            }
            state.pending[slot.bucket] -= 1;
        }
    }

    /// # Errors
    /// What keeps this rank from taking part in a bucket's reduction.
    fn launch_ready(&self, state: &mut State) -> Result<()> {
        let of = self.plan.buckets.len();
        while state.launched < of && state.pending[state.launched] == 0 {
            let index = state.launched;
            let whole_world = state.divisor == self.group.world_size();
            let share = if whole_world { 1.0 } else { 1.0 / state.divisor as f64 };
            let _site = site::on_behalf_of(Purpose::Bucket { number: index + 1, of });
            let terms = self.terms(state);
            state.storage.launch(index, share, terms)?;
            state.launched += 1;
            self.events.push(DdpEvent::BucketLaunched(index));
        }
        Ok(())
    }

    /// What a hook must know of the step.
    fn terms(&self, state: &State) -> Terms {
        let whole_world = state.divisor == self.group.world_size();
        let op = if whole_world { ReduceOp::Mean } else { ReduceOp::Sum };
        Terms { op, loss_scale: state.factor }
    }

    pub(crate) fn set_loss_scale(&self, loss_scale: LossScale) {
        self.lock().loss_scale = Some(loss_scale);
    }

    pub(crate) fn hook_state(&self) -> Option<HookState> {
        self.communicator.state()
    }

    pub(crate) fn load_hook_state(&self, state: &HookState) -> Result<()> {
        self.communicator.load_state(&self.group, state)
    }

    pub(crate) fn events(&self) -> &EventLog {
        &self.events
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Drops what a step has left, so that the next one starts from nothing.
    fn forget(&mut self) {
        self.storage.forget();
        self.launched = 0;
        self.filled.fill(false);
        self.micro_batches = 0;
    }
}

impl GradientSink for Reducer {
    fn receive(&self, index: usize, gradient: &ArrivedGradient<'_>) {
        let mut state = self.lock();
        if state.error.is_some() {
            return;
        }
        if let Err(error) = self.take_gradient(&mut state, index, gradient) {
            state.error = Some(error);
        }
    }

    fn fail(&self, _index: usize, error: Error) {
        self.lock().error.get_or_insert(error);
    }
}

impl Reducer {
    fn take_gradient(&self, state: &mut State, index: usize, gradient: &ArrivedGradient<'_>) -> Result<()> {
        let dtype = gradient.dtype();
        let slot = self.plan.slots[index];
        let name = &self.names[index];
        if state.phase == Phase::Idle {
            return Err(Error::BackwardOutsideDdp { parameter: name.clone() });
        }
        if state.fired[index] {
            return Err(Error::SecondGradient { parameter: name.clone() });
        }
        let expected = self.plan.buckets[slot.bucket].dtype;
        if dtype != expected || gradient.len_bytes() != slot.len_bytes {
            let cause = format!(
                "the gradient of `{name}` has {} bytes of {dtype:?}, its slot {} of {expected:?}",
                gradient.len_bytes(),
                slot.len_bytes
            );
            return Err(Error::ModelChanged { cause });
        }
        state.storage.put(index, gradient, state.filled[index])?;
        if state.phase == Phase::Reduce && state.micro_batches > 0 {
            state.storage.scale(index, 1.0 / (state.micro_batches + 1) as f64);
        }
        state.fired[index] = true;
        state.filled[index] = true;
        state.pending[slot.bucket] -= 1;
        self.events.push(DdpEvent::GradientReady(index));
        if state.phase == Phase::Reduce { self.launch_ready(state) } else { Ok(()) }
    }
}
