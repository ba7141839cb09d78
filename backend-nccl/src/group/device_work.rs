//! A collective on a GPU that is under way.

use std::fmt;

use crate::Result;

/// A collective on tensors of a GPU that is under way. The tensors stay valid until it has ended, whatever is dropped.
#[must_use = "the computation does not wait for it unless `wait` is called"]
pub struct DeviceWork(Box<dyn Fn(Until) -> Result<()> + Send>);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The operations that are called from now on see the result.
    Ordered,
    /// The GPU is done with it, and nothing holds its memory any more.
    Ended,
}

impl DeviceWork {
    pub(crate) fn new(wait: impl Fn(Until) -> Result<()> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Returns when the operations that are called from now on see the result. With
    /// [`StreamOrdering::ContextEvents`](crate::StreamOrdering::ContextEvents) that is when the GPU has been given the
    /// collective; a failure later on is that of the next call of the group.
    ///
    /// # Errors
    ///
    /// [`Error::Collective`](crate::Error::Collective) when the group has failed, with the cause.
    pub fn wait(&self) -> Result<()> {
        (self.0)(Until::Ordered)
    }

    /// Returns when the GPU has ended the collective and nothing holds its memory any more.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        (self.0)(Until::Ended)
    }
}

impl fmt::Debug for DeviceWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceWork")
    }
}
