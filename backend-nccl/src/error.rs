//! What can go wrong below the tensors, one variant for each thing that a caller can act on.

use std::{io, sync::Arc, time::Duration};

use crate::{
    failure::{Failure, Ranks},
    rendezvous::Refusal,
    transport::{DType, OpKind, ReduceOp},
};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the launch environment, the rendezvous or a collective.
///
/// Each text says what failed, why, and what to do. It is `Clone` because a failed group answers every later call
/// with the cause that ended it.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// A collective failed, and with it the group: every later call returns the same `failure` at once.
    #[error("{op} #{sequence} failed on rank {rank} of {world_size} after {elapsed:.1?}: {failure}")]
    Collective {
        /// The collective that was called.
        op: OpKind,
        /// Its place in the order of collectives of the group, from 1.
        sequence: u64,
        /// The rank that reports.
        rank: usize,
        /// The size of its group.
        world_size: usize,
        /// Time from the start of the call to the failure, zero if the group had failed before.
        elapsed: Duration,
        /// The cause, the same on every rank.
        failure: Failure,
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
    #[error(
        "reduce_scatter cannot share {rows} rows among {world_size} ranks; pad dimension 0 to a multiple"
    )]
    UnevenShards {
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
