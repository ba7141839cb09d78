//! What carries tensors that lie on GPUs, and how it is ordered with the computation there.

use serde::{Deserialize, Serialize};

use super::named::named;

/// What carries the collectives of CUDA tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceTransport {
    /// NCCL where there are other ranks; nothing at all in a group of one.
    #[default]
    Auto,
    /// NCCL, in a group of one too.
    Nccl,
    /// The group's host transport, by way of host memory.
    Host,
}

/// How NCCL's stream waits for the computation of a tensor, and the computation for NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StreamOrdering {
    /// Context events where the driver has them and they pass a test at the start, else the host's fence.
    #[default]
    Auto,
    /// `cuCtxRecordEvent` and `cuCtxWaitEvent`, of driver 12.5 and newer: no wait on the host.
    ContextEvents,
    /// The host waits: the communication thread for the computation, the caller for the end of NCCL.
    HostFence,
}

impl DeviceTransport {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Nccl, Self::Host];

    /// The name in the environment and on command lines: `auto`, `nccl`, `host`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nccl => "nccl",
            Self::Host => "host",
        }
    }
}

impl StreamOrdering {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Auto, Self::ContextEvents, Self::HostFence];

    /// The name in the environment and in records: `auto`, `context-events`, `host-fence`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ContextEvents => "context-events",
            Self::HostFence => "host-fence",
        }
    }
}

named!(DeviceTransport);
named!(StreamOrdering);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for transport in DeviceTransport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        for ordering in StreamOrdering::ALL {
            assert_eq!(ordering.to_string().parse(), Ok(ordering));
        }
        assert_eq!("gloo".parse::<DeviceTransport>(), Err("one of auto, nccl, host".to_owned()));
    }
}
