//! The collectives of a group on memory of a GPU.
//!
//! They have their places in the group's one order, and are handed to NCCL in it; what runs meanwhile on the host does not
//! wait for them.

use std::{
    any::Any,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{DeviceWork, ProcessGroup, core::Core, inside::GroupId, order::Operation};
use crate::{
    Result,
    deadline::Deadline,
    failure::Failure,
    rendezvous::requested,
    site::CallSite,
    transport::{
        Call, Collective, DType, DeviceTransport, OpKind, Patience, ReduceOp, Signature, StreamOrdering,
        nccl::{DeviceCall, DeviceOperation, Fence, Libraries, Nccl, Settings, TEST_BYTES, Variables},
        planned,
    },
};

/// What carries the tensors of a GPU in a group.
#[derive(Debug)]
pub(crate) enum DeviceRoute {
    /// The group has one rank: every collective is the identity.
    Alone,
    /// The host transport.
    Host,
    Nccl(Arc<Nccl>),
}

/// What carries a group's CUDA tensors, for logs and records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceTransportReport {
    /// The version of NCCL, such as `2.27.3`.
    pub nccl_version: String,
    /// How its stream is ordered with the computation; never [`StreamOrdering::Auto`].
    pub stream_ordering: StreamOrdering,
}

/// A collective on a GPU before it has its place in the order.
pub(crate) struct Planned {
    pub(crate) operation: DeviceOperation,
    pub(crate) dtype: DType,
    /// What keeps the memory valid.
    pub(crate) keep: Box<dyn Any + Send>,
}

impl ProcessGroup {
    /// What carries the tensors of the GPU `ordinal`. The first call for one makes the communicator: all ranks come here
    /// then, each with its own GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device) on all ranks where something is wrong on one;
    /// [`Error::EnvironmentInvalid`](crate::Error::EnvironmentInvalid).
    pub(crate) fn device_route(&self, ordinal: usize) -> Result<DeviceRoute> {
        self.device_route_by(ordinal, Libraries::from_environment)
    }

    /// The same with libraries of the caller's.
    pub(crate) fn device_route_by(
        &self,
        ordinal: usize,
        libraries: impl FnOnce() -> Libraries,
    ) -> Result<DeviceRoute> {
        let core = &self.inner.core;
        let wish = self.device_transport()?;
        if core.world_size > 1 {
            core.devices.agree(|| core.compare_wishes(wish))?;
        }
        match wish {
            DeviceTransport::Host => return Ok(DeviceRoute::Host),
            DeviceTransport::Auto if core.world_size == 1 => return Ok(DeviceRoute::Alone),
            DeviceTransport::Auto | DeviceTransport::Nccl => {}
        }
        core.devices
            .get_or_connect(ordinal, |number| self.connect_nccl(ordinal, number, libraries()))
            .map(DeviceRoute::Nccl)
    }

    /// What should carry tensors on GPUs, as this rank was told.
    ///
    /// # Errors
    ///
    /// [`Error::EnvironmentInvalid`](crate::Error::EnvironmentInvalid).
    pub(crate) fn device_transport(&self) -> Result<DeviceTransport> {
        self.setting(self.inner.core.options.device_transport, "BURN_NCCL_DEVICE_TRANSPORT")
    }

    /// A setting from the options or the environment. What cannot be read on one rank ends the group: the others are on
    /// their way into a collective.
    fn setting<T: FromStr<Err = String> + Default>(&self, option: Option<T>, name: &str) -> Result<T> {
        let read = || requested(name).inspect_err(|error| self.inner.core.abort(&error.to_string()));
        option.map_or_else(read, Ok)
    }

    fn connect_nccl(&self, ordinal: usize, number: u64, libraries: Libraries) -> Result<Nccl> {
        let core = &self.inner.core;
        let settings = Settings {
            rank: core.rank,
            world_size: core.world_size,
            number,
            ordinal,
            ordering: self.setting(core.options.stream_ordering, "BURN_NCCL_STREAM_ORDERING")?,
            timeout: core.options.timeout,
            libraries,
            variables: Variables::from_environment(),
            test_bytes: TEST_BYTES,
        };
        let deadline = Deadline::after(core.options.connect_timeout);
        let nccl = Nccl::connect(core.transport.clone(), settings, deadline)?;
        let (version, ordering) = (nccl.version(), nccl.ordering());
        log::info!("rank {} uses NCCL {version} on GPU {ordinal}, ordered by {ordering}", core.rank);
        Ok(nccl)
    }

    /// Whether a communicator has been begun, for tests.
    #[cfg(test)]
    pub(crate) fn has_begun_devices(&self) -> bool {
        self.inner.core.devices.is_used()
    }

    /// What carries the group's CUDA tensors, once a first collective on one has been called.
    pub fn device_transport_report(&self) -> Option<DeviceTransportReport> {
        let nccl = self.inner.core.devices.all().into_iter().next()?;
        Some(DeviceTransportReport { nccl_version: nccl.version(), stream_ordering: nccl.ordering() })
    }

    /// Whether the group has failed, or a rank is lost, without a collective: with
    /// [`StreamOrdering::ContextEvents`] a step that has been handed to the GPU may still fail there.
    ///
    /// # Errors
    ///
    /// [`Error::SetUp`](crate::Error::SetUp) with the cause.
    pub fn check_health(&self) -> Result<()> {
        let core = &self.inner.core;
        let (rank, world_size) = (core.rank, core.world_size);
        match core.transport.obstacle() {
            Some(failure) => Err(crate::Error::SetUp { rank, world_size, failure }),
            None => Ok(()),
        }
    }

    /// Hands a collective to NCCL in its turn. `fence` is asked for where streams are ordered by the host.
    ///
    /// # Errors
    ///
    /// [`Error::Collective`](crate::Error::Collective) when the group has failed.
    #[track_caller]
    pub(crate) fn start_on_device(
        &self,
        nccl: &Nccl,
        planned: Planned,
        fence: impl FnOnce() -> Fence,
    ) -> Result<DeviceWork> {
        let core = &self.inner.core;
        GroupId::of(core).must_be_outside("a collective on a GPU")?;
        let site = CallSite::here();
        let operation = match planned.operation {
            DeviceOperation::Exchange { send, receive } => {
                Operation::Messages { to: send.map(|(_, to)| to), from: receive.map(|(_, from)| from) }
            }
            _ => Operation::Collectives(1),
        };
        let signature = signature(&planned.operation, planned.dtype);
        let ticket = core.order.take(operation, |ticket| {
            core.note(ticket, operation, signature, site);
            ticket
        });
        let signature = Signature { sequence: ticket.sequence, ..signature };
        let _turn = core.order.wait(ticket);
        if core.options.check && matches!(operation, Operation::Collectives(_)) {
            core.agree(signature)?;
        }
        let call = core.device_call(ticket.turn, planned);
        let flight =
            nccl.start(call, fence).map_err(|failure| core.failed(signature, Duration::ZERO, failure))?;
        let (core, start) = (core.clone(), Instant::now());
        Ok(DeviceWork::new(move || {
            flight.join().map_err(|failure| core.failed(signature, start.elapsed(), failure))
        }))
    }
}

impl Core {
    /// Compares a collective on a GPU on all ranks before it is handed over: NCCL itself would hang or mix up the data.
    fn agree(&self, signature: Signature) -> Result<()> {
        let deadline = Deadline::after(self.options.timeout);
        let call = Call {
            sequence: signature.sequence,
            deadline,
            check: true,
            checksums: false,
            patience: Patience::Waiting,
            part_of: Some(signature),
        };
        self.transport.execute(call, Collective::Barrier).map_err(|failure| {
            let error = self.failed(signature, deadline.elapsed(), failure.clone());
            self.watchdog.write(&error.to_string(), &failure);
            error
        })
    }

    /// The call of an operation, which the group's record follows. It holds the record and not the group: the thread that
    /// drops it last must not be the one that the group waits for.
    fn device_call(&self, turn: u64, planned: Planned) -> DeviceCall {
        let Planned { operation, dtype, keep } = planned;
        let (started, ended) = (self.watchdog.clone(), self.watchdog.clone());
        let on_end = move |failure: Option<&Failure>| {
            ended.recorder.end(turn, Instant::now(), failure.is_some());
            if let Some(failure) = failure {
                ended.write(&failure.to_string(), failure);
            }
        };
        let on_start = move || started.recorder.start(turn, Instant::now());
        DeviceCall { operation, dtype, keep, on_start: Box::new(on_start), on_end: Box::new(on_end) }
    }
}

/// What ranks compare, and what is recorded.
fn signature(operation: &DeviceOperation, dtype: DType) -> Signature {
    let reduced = |kind, op: ReduceOp, bytes| planned(kind, dtype, Some(op), 0, bytes);
    match operation {
        DeviceOperation::AllReduce { send, op, .. } => reduced(OpKind::AllReduce, *op, send.len_bytes),
        DeviceOperation::Bucket { bucket, op, .. } => reduced(OpKind::AllReduce, *op, bucket.len_bytes),
        DeviceOperation::ReduceScatter { recv, op, .. } => {
            reduced(OpKind::ReduceScatter, *op, recv.len_bytes)
        }
        DeviceOperation::Broadcast { send, root, .. } => {
            planned(OpKind::Broadcast, dtype, None, *root, send.len_bytes)
        }
        DeviceOperation::AllGather { send, .. } => planned(OpKind::AllGather, dtype, None, 0, send.len_bytes),
        DeviceOperation::AllToAll { send, .. } => planned(OpKind::AllToAll, dtype, None, 0, send.len_bytes),
        DeviceOperation::Exchange { send, receive } => {
            let peer = send.or(*receive).map_or(0, |(_, rank)| rank);
            let bytes = [send, receive].into_iter().flatten().map(|(region, _)| region.len_bytes).sum();
            planned(OpKind::Message, dtype, None, peer, bytes)
        }
    }
}
