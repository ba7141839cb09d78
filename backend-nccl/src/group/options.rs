//! The settings of a process group.

use std::time::Duration;

use crate::{
    Result,
    rendezvous::{debug_requested, requested},
    transport::{DeviceTransport, StreamOrdering, TransportKind, Wish},
};

/// How long a collective may take unless told otherwise: longer than any step, shorter than a night.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the ranks may take to find each other unless told otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a host may be out of reach unless told otherwise: longer than a switch takes to find another way.
pub const DEFAULT_HOST_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a process group. All ranks should use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupOptions {
    /// The limit of one collective, from its start on this rank. Default: 5 minutes.
    pub timeout: Duration,
    /// The limit of the rendezvous, and of making NCCL's communicator in the first collective on a GPU. Default: 5 minutes.
    pub connect_timeout: Duration,
    /// How long the host of another rank may answer nothing before its ranks are lost, at least 2 seconds. Default: 10
    /// seconds. A rank that crashes or is killed is noticed at once, whatever this is; one that is stopped on a host
    /// that answers is the matter of `timeout`.
    pub host_timeout: Duration,
    /// Compare op, type and length on all ranks before any data of a collective moves. Costs one hop of
    /// latency over TCP and MPI, and a barrier of the host for each collective on GPUs; shared memory always compares, at no
    /// cost of its own. All ranks must agree.
    ///
    /// Default: on in debug builds and where `BURN_NCCL_DEBUG=1`. When it is off a difference is still an error on hosts. NCCL
    /// does not compare: there a difference hangs until the deadline, or mixes up data.
    pub check: bool,
    /// Let payloads carry a CRC32C for each piece of 256 KiB where they travel over TCP, so that bytes that a network
    /// changes on their way are a [`Failure::Protocol`](crate::Failure::Protocol) that names the sender, not a wrong
    /// gradient. TCP's own checksum has 16 bits and ends at each middlebox. All ranks must agree. Shared memory and MPI
    /// carry none. Default: where `BURN_NCCL_DEBUG=1`.
    pub checksums: bool,
    /// The transport. Default: `None`, what `BURN_NCCL_TRANSPORT` says (`auto`, `tcp`, `shm` or `mpi`), else
    /// [`TransportKind::Auto`].
    pub transport: Option<TransportKind>,
    /// What carries CUDA tensors. Default: `None`, what `BURN_NCCL_DEVICE_TRANSPORT` says (`auto`, `nccl` or `host`), else
    /// [`DeviceTransport::Auto`]. All ranks must agree.
    pub device_transport: Option<DeviceTransport>,
    /// How NCCL is ordered with the computation on a GPU. Default: `None`, what `BURN_NCCL_STREAM_ORDERING` says (`auto`,
    /// `context-events` or `host-fence`), else [`StreamOrdering::Auto`].
    pub stream_ordering: Option<StreamOrdering>,
    /// A test double: the number of the host on which each rank is to believe that it is, so that one machine plays
    /// several. Hidden and outside of any promise of stability: not for programs.
    #[doc(hidden)]
    pub pretended_hosts: Option<Vec<u32>>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            host_timeout: DEFAULT_HOST_TIMEOUT,
            check: cfg!(debug_assertions) || debug_requested(),
            checksums: debug_requested(),
            transport: None,
            device_transport: None,
            stream_ordering: None,
            pretended_hosts: None,
        }
    }
}

impl GroupOptions {
    /// Sets the limit of one collective.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the limit of the rendezvous.
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets how long the host of another rank may answer nothing.
    pub fn with_host_timeout(mut self, host_timeout: Duration) -> Self {
        self.host_timeout = host_timeout;
        self
    }

    /// Switches the comparison of op, type and length before each collective.
    pub fn with_check(mut self, check: bool) -> Self {
        self.check = check;
        self
    }

    /// Switches the checksums of payloads.
    pub fn with_checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }

    /// Sets the transport, over what the environment says.
    pub fn with_transport(mut self, transport: TransportKind) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets what carries CUDA tensors, over what the environment says.
    pub fn with_device_transport(mut self, transport: DeviceTransport) -> Self {
        self.device_transport = Some(transport);
        self
    }

    /// Sets how NCCL is ordered with the computation, over what the environment says.
    pub fn with_stream_ordering(mut self, ordering: StreamOrdering) -> Self {
        self.stream_ordering = Some(ordering);
        self
    }

    /// What is asked for on this rank.
    pub(crate) fn wish(&self, rank: usize) -> Result<Wish> {
        let kind = self.transport.map_or_else(|| requested("BURN_NCCL_TRANSPORT"), Ok)?;
        let pretended = self.pretended_hosts.as_ref().and_then(|hosts| hosts.get(rank));
        Ok(Wish { kind, host: pretended.map(|host| format!("a pretended host, {host}")) })
    }
}
