//! Where tensors lie, and what carries them.

use serde::{Deserialize, Serialize};

use crate::transport::DeviceTransport;

/// Where a tensor lies, as far as it decides what carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Placement {
    /// In host memory, or on a device that only the host reaches.
    Host,
    /// On a GPU of the CUDA backend.
    Cuda {
        /// Its CUDA ordinal in this process.
        ordinal: usize,
        /// What should carry it, as this rank was told.
        transport: DeviceTransport,
    },
}

/// What carries a tensor in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// The group's host transport, by way of host memory.
    Host,
    /// Nothing: the group has one rank, and every collective is the identity.
    Alone,
    /// NCCL, from the memory of the device to that of the others.
    Device,
}
