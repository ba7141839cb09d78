//! A collective on a GPU that is under way.

use std::fmt;

use crate::Result;

/// A collective on tensors of a GPU that is under way. The tensors stay valid until it has ended, whatever is dropped.
#[must_use = "the computation does not wait for it unless `wait` is called"]
pub struct DeviceWork(Box<dyn FnOnce() -> Result<()> + Send>);

impl DeviceWork {
    pub(crate) fn new(wait: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Returns when the operations that are called from now on see the result. With
    /// [`StreamOrdering::ContextEvents`](crate::StreamOrdering::ContextEvents) that is when the GPU has been given the
    /// collective; a failure later on is that of the next call of the group.
    ///
    /// # Errors
    ///
    /// [`Error::Collective`](crate::Error::Collective) when the group has failed, with the cause.
    pub fn wait(self) -> Result<()> {
        (self.0)()
    }
}

impl fmt::Debug for DeviceWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceWork")
    }
}
