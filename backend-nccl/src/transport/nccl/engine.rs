//! One communicator, seen from the group.

use std::sync::Arc;
use std::time::Duration;

use super::operation::{DeviceCall, Fence};
use crate::{
    Result,
    deadline::Deadline,
    failure::Failure,
    transport::{StreamOrdering, Transport},
};

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The CUDA ordinal of this rank's GPU.
    pub(crate) ordinal: usize,
    pub(crate) ordering: StreamOrdering,
    /// The limit of one operation, from its start on this rank.
    pub(crate) timeout: Duration,
}

/// A communicator of a group on one GPU, with the thread that owns it.
#[derive(Debug)]
pub(crate) struct Nccl {}

/// An operation that has been handed over.
#[must_use = "the computation does not wait for it unless `join` is called"]
#[derive(Debug)]
pub(crate) struct Flight {}

impl Nccl {
    /// Compares what the ranks have (libraries, driver, GPUs) and makes the communicator. All ranks of `group` come here.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device), the same on every rank, before any communicator is made;
    /// [`Error::SetUp`](crate::Error::SetUp) by the deadline.
    pub(crate) fn connect(group: Arc<dyn Transport>, settings: Settings, deadline: Deadline) -> Result<Self> {
        let _ = (group, settings, deadline);
        todo!()
    }

    /// Hands an operation over, in the order of the calls. With context events the point that the device waits for is now;
    /// else `fence` is made now and waited for by the communication thread.
    ///
    /// # Errors
    ///
    /// The failure that has ended the group.
    pub(crate) fn start(&self, call: DeviceCall, fence: impl FnOnce() -> Fence) -> Result<Flight, Failure> {
        let _ = (call, fence);
        todo!()
    }

    /// Waits until all operations have ended, under their deadlines, and leaves the communicator. Later calls do nothing.
    pub(crate) fn close(&self) {
        todo!()
    }

    /// How streams are ordered: never [`StreamOrdering::Auto`].
    pub(crate) fn ordering(&self) -> StreamOrdering {
        todo!()
    }

    /// The version of NCCL, such as `2.27.3`.
    pub(crate) fn version(&self) -> String {
        todo!()
    }
}

impl Flight {
    /// Returns when work that is submitted from now on sees the result: with context events as soon as the device has the
    /// operation, else when it has ended.
    ///
    /// # Errors
    ///
    /// The failure that has ended the group.
    pub(crate) fn join(self) -> Result<(), Failure> {
        todo!()
    }
}
