//! What can go wrong below the tensors, one variant for each thing that a caller can act on.

use std::{fmt, io, sync::Arc, time::Duration};

use crate::{
    amp::Precision,
    device_error::DeviceError,
    failure::{Failure, Ranks},
    group::WORLD,
    rendezvous::Refusal,
    transport::{DType, OpKind, ReduceOp, TransportKind},
};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the launch environment, the rendezvous or a collective.
///
/// Each text says what failed, why, and what to do; `Debug` gives the same text, which is what a program shows whose
/// `main` returns the error. It is `Clone` because a failed group answers every later call with the cause that ended it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some variables of a launcher are set and others are not.
    #[error(
        "the environment of {launcher} is incomplete: {missing} not set while {found} set; start the program with \
         burnrun, torchrun, mpirun or srun, or unset the rest to run as a single process"
    )]
    EnvironmentIncomplete {
        /// Whose variables were found: `torchrun`, `Open MPI` or `SLURM`.
        launcher: &'static str,
        /// The variables that are set, joined for reading.
        found: String,
        /// The variables that are not, joined for reading.
        missing: String,
    },
    /// A variable is set to something that cannot be meant.
    #[error(
        "the environment variable {name} is `{value}`, expected {expected}; correct it or let a launcher set it"
    )]
    EnvironmentInvalid {
        /// The variable.
        name: String,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: String,
    },
    /// A secret that is too short or not in hexadecimal digits. It is not shown.
    #[error(
        "BURN_NCCL_SECRET {found}, expected at least 32 hexadecimal digits, such as `openssl rand -hex 32` prints; give \
         all ranks the same, or let burnrun choose it"
    )]
    Secret {
        /// What is wrong with it.
        found: String,
    },
    /// No random numbers, without which nothing can be proven.
    #[error(
        "the system gives no random numbers: {cause}; the ranks need them to prove that they belong together"
    )]
    Random {
        /// The system's reason.
        cause: String,
    },
    /// Rank 0 cannot serve the rendezvous because the port is taken.
    #[error(
        "rank 0 cannot listen on {address}: the port is in use by another program; set MASTER_PORT to a free port, \
         or let burnrun choose one"
    )]
    PortInUse {
        /// The address that was tried.
        address: String,
    },
    /// A listening socket could not be made for another reason.
    #[error(
        "cannot listen on {address}: {source}; MASTER_ADDR must be an address of the machine that runs rank 0"
    )]
    Listen {
        /// The address that was tried.
        address: String,
        /// The operating system's reason.
        source: Arc<io::Error>,
    },
    /// Nobody that speaks the protocol answered before the deadline.
    #[error(
        "rank {rank} could not connect to {target} at {address} within {waited:.1?}: {last}; check that it runs, \
         that MASTER_ADDR and MASTER_PORT are those of rank 0, and that no firewall is between"
    )]
    Connect {
        /// The rank that tried.
        rank: usize,
        /// What it tried to reach.
        target: String,
        /// Where.
        address: String,
        /// How long.
        waited: Duration,
        /// What the last attempt met.
        last: String,
    },
    /// The other side answered and will not have this rank.
    #[error("rank {rank} of {world_size} was refused by {address}: {refusal}")]
    Refused {
        /// The rank that asked.
        rank: usize,
        /// The world size it was started with.
        world_size: usize,
        /// Who refused.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// Some ranks never joined.
    #[error(
        "{} of {world_size} did not join {address} within {waited:.1?}; check that they were started and read their \
         logs, or raise the limit with GroupOptions::with_connect_timeout",
        Ranks(missing)
    )]
    MissingRanks {
        /// The ranks that are missing.
        missing: Vec<usize>,
        /// The number of ranks that were expected.
        world_size: usize,
        /// Where they were expected.
        address: String,
        /// For how long.
        waited: Duration,
    },
    /// A request to the rendezvous store failed.
    #[error(
        "the rendezvous store could not {request} `{key}`: {reason}; rank 0 serves the store, read its log"
    )]
    Store {
        /// `set`, `get` or `wait for`.
        request: &'static str,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
    /// The ranks found each other and could not set up what they need together.
    #[error("rank {rank} of {world_size} could not set up its group: {failure}")]
    SetUp {
        /// The rank that reports.
        rank: usize,
        /// The size of the group.
        world_size: usize,
        /// The cause.
        failure: Failure,
    },
    /// MPI could not do what the group needs of it.
    #[error(
        "MPI could not {action}: {text}{}; check that mpirun of the same MPI started all ranks, or set \
         BURN_NCCL_TRANSPORT=tcp with MASTER_ADDR and MASTER_PORT to do without",
        class_of(*class)
    )]
    Mpi {
        /// What was tried.
        action: String,
        /// MPI's error class, 0 where it was not MPI that refused.
        class: i32,
        /// Why.
        text: String,
    },
    /// Ranks were asked to use different transports.
    #[error(
        "rank 0 asks for {first} and rank {rank} for {other}; give all ranks the same transport, by \
         GroupOptions::with_transport or BURN_NCCL_TRANSPORT"
    )]
    TransportDiffers {
        /// What rank 0 was asked to use.
        first: TransportKind,
        /// The first rank that differs.
        rank: usize,
        /// What that one was asked to use.
        other: TransportKind,
    },
    /// A transport that was asked for by name and cannot be used.
    #[error(
        "the transport {kind} cannot carry this group: {reason}; ask for {} to take the fastest that can",
        TransportKind::Auto
    )]
    TransportUnavailable {
        /// What was asked for.
        kind: TransportKind,
        /// Why it cannot be used.
        reason: String,
    },
    /// A message to or from the rank itself.
    #[error("{call}: rank {rank} cannot exchange messages with itself; copy the data instead")]
    MessageToSelf {
        /// The method that was called.
        call: &'static str,
        /// The rank.
        rank: usize,
    },
    /// A buffer that only the root has, on a rank that is not the root, or its lack on the root.
    #[error("{op}: {}", if *is_root { "the root must give its buffer" } else { "only the root gives this buffer; pass None on the others" })]
    RootBuffer {
        /// The collective.
        op: OpKind,
        /// Whether this rank is the root.
        is_root: bool,
    },
    /// GPUs, the CUDA driver or NCCL are not as they must be. Known before anything is computed, and told on every rank.
    #[error("{}{error}", of_rank(*rank, *world_size))]
    Device {
        /// The rank it happened on.
        rank: usize,
        /// The size of its group.
        world_size: usize,
        /// What is wrong.
        error: Box<DeviceError>,
    },
    /// A collective failed, and with it the group: every later call returns the same `failure` at once.
    #[error(
        "{op} #{sequence} failed on rank {rank} of {world_size}{} after {elapsed:.1?}: {failure}",
        of_group(group)
    )]
    Collective {
        /// The collective that was called.
        op: OpKind,
        /// Its place in the order of collectives of the group, from 1.
        sequence: u64,
        /// The rank that reports.
        rank: usize,
        /// The size of its group.
        world_size: usize,
        /// The name of its group.
        group: String,
        /// Time from the start of the call to the failure, zero if the group had failed before.
        elapsed: Duration,
        /// The cause, the same on every rank.
        failure: Box<Failure>,
    },
    /// A buffer whose size does not fit the call.
    #[error("{op}: the {buffer} buffer has {found} bytes, expected {expected}")]
    BufferLength {
        /// The collective.
        op: OpKind,
        /// Which buffer.
        buffer: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: usize,
    },
    /// A root outside the group.
    #[error("{op}: root {root} is not a rank of a group of {world_size}; ranks count from 0")]
    Root {
        /// The collective.
        op: OpKind,
        /// The root that was given.
        root: usize,
        /// The size of the group.
        world_size: usize,
    },
    /// A reduction that is not defined for the type.
    #[error(
        "{op} of {dtype} is not defined; reduce integers with sum and divide, or convert to a float type"
    )]
    UnsupportedReduction {
        /// The reduction.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// A gathered value that is too large to be meant.
    #[error(
        "all_gather_bytes: the ranks' values pad to {bytes} bytes, the limit is {limit}; gather them in parts"
    )]
    GatherTooLarge {
        /// The bytes that the gathered values would take.
        bytes: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A thread for asynchronous collectives could not be started or died.
    #[error("the communication thread of the group is gone: {reason}; the group must be made anew")]
    CommunicationThread {
        /// Why.
        reason: String,
    },
    /// A job that reserves no place in the order of collectives.
    #[error(
        "a job needs at least one reserved place in the order of collectives, for what it runs on the group; reserve as \
         many as it runs, the same number on all ranks, or run what needs no collective without the group"
    )]
    NoPlaces,
    /// A call of a group from a job, or a communication hook, that runs on the same group: each would wait for the other.
    #[error(
        "{call} would wait for the job that called it: a job or a communication hook runs in its own turn on the group; \
         use the methods of the `Reserved` that it is given, or another group"
    )]
    InsideJob {
        /// What was called.
        call: &'static str,
    },
    /// More collectives than places were reserved for.
    #[error(
        "a job of {places} reserved places in the order of collectives called one more; reserve as many as it runs, \
         the same number on all ranks"
    )]
    ReservedPlaces {
        /// The places that were reserved.
        places: u64,
    },
    /// A build of this crate in which no tensor can take part in a collective.
    #[error(
        "burn-nccl was built without a backend; enable the feature of your backend (flex, ndarray or cuda) on burn-nccl \
         as you did on burn"
    )]
    NoBackend,
    /// An element type that no collective reduces.
    #[error(
        "tensors of {dtype} cannot take part in collectives; cast to f32, f64, f16, bf16, i32, i64 or u8 first"
    )]
    UnsupportedDType {
        /// Burn's name of the type.
        dtype: String,
    },
    /// A tensor could not be read to host memory.
    #[error("a tensor could not be read to host memory: {cause}; the device may be out of memory or lost")]
    TensorRead {
        /// The backend's reason.
        cause: String,
    },
    /// A tensor whose rows cannot be shared out evenly.
    #[error("{op} cannot share {rows} rows among {world_size} ranks; pad dimension 0 to a multiple")]
    UnevenShards {
        /// The function that was called.
        op: &'static str,
        /// The size of dimension 0.
        rows: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A reduction without a derivative here.
    #[error("{op} with {reduce} is not differentiable; detach the tensor, or use sum or mean")]
    NotDifferentiable {
        /// The function that was called.
        op: &'static str,
        /// The reduction.
        reduce: ReduceOp,
    },
    /// A function that would cut a tensor off its graph.
    #[error(
        "{op} is not differentiable and would cut the tensor off its graph; detach it, or use all_gather, all_to_all or \
         broadcast"
    )]
    CutsGraph {
        /// The function that was called.
        op: &'static str,
    },
    /// Ranks hold different models or options.
    #[error(
        "rank {rank} does not hold the model of rank 0: {differences}; build the same model with the same options on every rank"
    )]
    ModelMismatch {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// What differs, both sides.
        differences: String,
    },
    /// What a rank says about its model could not be read.
    #[error(
        "the description of a rank's model could not be read: {cause}; all ranks must run the same program"
    )]
    ModelDescription {
        /// What was wrong with it.
        cause: String,
    },
    /// A model without anything to train.
    #[error(
        "the model has no parameter that requires gradients; build it on an autodiff device, such as Device::flex().autodiff(), and leave at least one parameter unfrozen"
    )]
    NothingToTrain,
    /// The model is not the one that was wrapped.
    #[error(
        "the model has changed since it was wrapped: {cause}; make a new DistributedDataParallel after changing what is trained"
    )]
    ModelChanged {
        /// What changed.
        cause: String,
    },
    /// Parameters without a gradient.
    #[error(
        "parameters got no gradient on some ranks ({details}); freeze them, use them in the loss, or set UnusedParameters::Allow"
    )]
    UnusedParameters {
        /// Each rank's unused parameters.
        details: String,
    },
    /// Ranks ran out of data at different times.
    #[error(
        "ranks {exhausted:?} of {world_size} have no batch left while others have; give all ranks equally many with a padding sampler, or set UnevenInputs::JoinActive"
    )]
    UnevenInputs {
        /// The ranks without data.
        exhausted: Vec<usize>,
        /// The number of ranks.
        world_size: usize,
    },
    /// A batch that has no variance because it has one value.
    #[error(
        "batch normalisation got one value per channel from all ranks together, so that nothing would be left of it; train with at least two values per channel, or freeze the layer"
    )]
    OneValuePerChannel,
    /// An option of data-parallel training that a synchronized batch norm cannot meet.
    #[error(
        "{option} cannot be used with a model that has synchronized batch norm layers: {reason}; {remedy}"
    )]
    SyncBatchNormOption {
        /// The option.
        option: String,
        /// What would go wrong.
        reason: &'static str,
        /// What to set instead.
        remedy: &'static str,
    },
    /// A communication hook of data-parallel training failed, and with it the group.
    #[error(
        "the communication hook `{hook}` failed in {place} on rank {rank}: {cause}; correct the hook, or train without \
         it, and make the group anew"
    )]
    CommunicationHook {
        /// The hook's name.
        hook: String,
        /// What it was doing, such as `bucket 2`.
        place: String,
        /// The rank that reports.
        rank: usize,
        /// The hook's own error.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A communication hook that cannot work as it is set.
    #[error("the communication hook `{hook}` cannot be used: {reason}")]
    CommunicationHookRefused {
        /// The hook's name.
        hook: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A state that does not go with the communication hook that is to load it.
    #[error(
        "the state of the communication hook `{hook}` cannot be loaded: {reason}; load what the same hook saved for the \
         same model, on every rank, or begin without a state"
    )]
    CommunicationHookState {
        /// The hook's name.
        hook: String,
        /// Why.
        reason: String,
    },
    /// Gradients that were accumulated and never reduced.
    #[error(
        "{micro_batches} micro-batches were accumulated and never reduced; end the last window with backward"
    )]
    UnreducedGradients {
        /// How many.
        micro_batches: usize,
    },
    /// A gradient outside of a backward pass that the reducer knows of.
    #[error(
        "the gradient of `{parameter}` arrived outside of DistributedDataParallel::backward; call ddp.backward(&loss, &model) instead of loss.backward()"
    )]
    BackwardOutsideDdp {
        /// The parameter.
        parameter: String,
    },
    /// A second gradient in one backward pass.
    #[error(
        "`{parameter}` got a second gradient in one backward pass; hook the model anew for each forward pass and run one backward for it"
    )]
    SecondGradient {
        /// The parameter.
        parameter: String,
    },
    /// A precision that does not exist.
    #[error("unknown precision `{name}`: use f32, bf16 or f16")]
    UnknownPrecision {
        /// The name as given.
        name: String,
    },
    /// A path of [`AutocastConfig`](crate::amp::AutocastConfig) that names no parameter.
    #[error(
        "full_precision_paths: `{pattern}` names no parameter of the model; the nearest are {}",
        quoted(nearest)
    )]
    AutocastPath {
        /// The path as given.
        pattern: String,
        /// The paths most like it.
        nearest: Vec<String>,
    },
    /// A layer that cannot run under mixed precision.
    #[error(
        "{layer}{}{} cannot take {precision} input: {remedy}",
        at(path),
        and_others(*others)
    )]
    AutocastLayer {
        /// The name of the layer's type.
        layer: String,
        /// Its path; empty for the model itself.
        path: String,
        /// How many more layers of the model cannot either.
        others: usize,
        /// The precision of the policy.
        precision: Precision,
        /// What to do.
        remedy: &'static str,
    },
    /// A backend that lacks an op in half precision.
    #[error(
        "the backend `{backend}` cannot run {op} in {precision}: {cause}; train in f32 or on a backend that can, or keep \
         the layers that need it in f32 by full_precision_paths"
    )]
    AutocastUnsupported {
        /// The op.
        op: &'static str,
        /// The half type.
        precision: Precision,
        /// Burn's name of the backend.
        backend: String,
        /// Why.
        cause: String,
    },
    /// Gradients of one optimizer were unscaled a second time.
    #[error(
        "the gradients of optimizer {optimizer} were unscaled twice since the last update, which would divide them by the \
         square of the scale; call unscale once, after all micro-batches, and update at the end of each iteration"
    )]
    UnscaledTwice {
        /// The optimizer's number, 0 where there is one.
        optimizer: usize,
    },
    /// Gradients were unscaled after they were used.
    #[error(
        "unscale was called for optimizer {optimizer} after its step; call it between the backward pass and the step, \
         and update before the next iteration"
    )]
    UnscaledAfterStep {
        /// The optimizer's number, 0 where there is one.
        optimizer: usize,
    },
    /// An optimizer stepped a second time.
    #[error(
        "optimizer {optimizer} stepped twice since the last update; call update at the end of each iteration, and \
         number optimizers that share a scaler with GradScaler::optimizer"
    )]
    SteppedTwice {
        /// The optimizer's number, 0 where there is one.
        optimizer: usize,
    },
    /// An update without anything to decide by.
    #[error(
        "the loss scale cannot be updated: no gradients were unscaled since the last update; call update once per \
         optimizer step, after it, and not between the micro-batches of a window"
    )]
    NothingUnscaled,
    /// An optimizer without gradients.
    #[error(
        "optimizer {optimizer} has no gradients to unscale on any rank; pass the model whose parameters the loss \
         depends on, and the gradients of its backward pass"
    )]
    NoGradients {
        /// The optimizer's number, 0 where there is one.
        optimizer: usize,
    },
    /// A setting or state of loss scaling that cannot work.
    #[error("{setting} of the gradient scaler is {found}, expected {expected}")]
    InvalidLossScaling {
        /// The setting.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The state of a disabled scaler, or of none.
    #[error(
        "the state of the gradient scaler is empty: it was saved with scaling disabled; start this run without it"
    )]
    EmptyScalerState,
    /// A gradient in a type that cannot hold its unscaled value.
    #[error(
        "the gradient of `{parameter}` is f16, in which it underflows when it is unscaled; keep parameters in f32 and \
         cast them for the forward pass with Autocast"
    )]
    HalfPrecisionGradient {
        /// The parameter.
        parameter: String,
    },
    /// Overflow at a scale that leaves nothing to reduce.
    #[error(
        "gradients overflow even with a loss scale of {scale}, and it may not fall below {min_scale}: the loss itself \
         is infinite or NaN; look for such values in the data and the loss, lower the learning rate, or set min_scale"
    )]
    LossScaleFloor {
        /// The scale at which they overflowed.
        scale: f32,
        /// The floor.
        min_scale: f32,
    },
    /// Ranks scale their losses differently.
    #[error(
        "the loss scale differs between ranks ({ranks}), so that their gradients cannot be averaged; use the same \
         GradScalerConfig and load the same state on every rank"
    )]
    LossScaleMismatch {
        /// Each rank's scale.
        ranks: String,
    },
    /// A limit that no gradient could keep.
    #[error("the limit of the gradient's norm is {max_norm}; set max_norm to a number above 0")]
    InvalidMaxNorm {
        /// The limit.
        max_norm: f64,
    },
    /// Gradients whose norm is not finite.
    #[error(
        "the norm of the gradients is {norm}, so they cannot be clipped; look for infinities in the data and the loss, \
         lower the learning rate, or clear error_if_nonfinite and let a GradScaler skip the step"
    )]
    NonFiniteNorm {
        /// The norm.
        norm: f64,
    },
    /// An average of nothing.
    #[error(
        "the accumulation window is empty, so there are no gradients to average; add a micro-batch first"
    )]
    EmptyWindow,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The cause that ended the group, if this error is one of a collective.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Collective { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

/// MPI's error class for a sentence, if there is one.
pub(crate) fn class_of(class: i32) -> String {
    if class == 0 { String::new() } else { format!(" (error class {class})") }
}

/// Names the rank that something happened on, where there are several.
fn of_rank(rank: usize, world_size: usize) -> String {
    if world_size > 1 { format!("rank {rank} of {world_size}: ") } else { String::new() }
}

/// Names a group whose ranks are not those of the job.
fn of_group(name: &str) -> String {
    if name == WORLD { String::new() } else { format!(" of group `{name}`") }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn at(path: &str) -> String {
    match path {
        "" => ", the model itself,".into(),
        path => format!(" at `{path}`"),
    }
}

fn and_others(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" and {others} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named_with_address_and_time() {
        let error = Error::MissingRanks {
            missing: vec![2, 3],
            world_size: 4,
            address: "10.0.0.1:29500".into(),
            waited: Duration::from_secs(300),
        };
        let text = error.to_string();
        assert!(text.starts_with("ranks 2, 3 of 4 did not join 10.0.0.1:29500 within 300.0s"), "{text}");
    }
}
