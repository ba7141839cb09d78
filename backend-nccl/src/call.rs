//! What a backend operation needs to know of a collective, and where it leaves what it cannot return.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device_error::DeviceError;
use crate::error::{Error, Result};
use crate::group::{DeviceWork, ProcessGroup};
use crate::site::{self, Purpose};

/// The group that a collective op runs on, and the place where it leaves its error.
///
/// A backend op returns a tensor and nothing else, and a panic inside the backward pass would take the
/// whole graph with it, so a failed op stores its error here and returns a tensor of the right shape.
#[derive(Clone, Debug)]
pub struct Call {
    /// The group whose ranks all make this call, in the same order.
    pub group: ProcessGroup,
    status: Arc<Mutex<Option<Error>>>,
    /// Set in a backward pass, where nobody reads the status.
    ends_group: bool,
    /// Whether a collective on a GPU has ended there when it returns, so that its success is certain.
    is_final: bool,
    /// The user's line that made the call; for an adjoint, the call that it is the adjoint of.
    location: &'static Location<'static>,
}

impl Call {
    /// A call on `group` that has not failed.
    #[track_caller]
    pub fn new(group: &ProcessGroup) -> Self {
        let location = site::location();
        Self { group: group.clone(), status: Arc::default(), ends_group: false, is_final: false, location }
    }

    /// A call whose user may read the result next, and is to know from the call whether it is one. Training does not wait so:
    /// its steps follow each other on the GPU, and the failure of one is that of the next.
    pub(crate) fn awaited(self) -> Self {
        Self { is_final: true, ..self }
    }

    /// Whether to wait until a GPU has ended the collective.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA tensors come here"))]
    pub(crate) fn is_final(&self) -> bool {
        self.is_final
    }

    /// A part of this call that tells its own error.
    pub(crate) fn part(&self) -> Self {
        Self { status: Arc::default(), ..self.clone() }
    }

    /// The call of this one's adjoint. Its error has no caller to go to, so it ends the group: otherwise this rank would
    /// go on with a wrong gradient.
    pub(crate) fn in_backward(&self) -> Self {
        let (group, location) = (self.group.clone(), self.location);
        Self { group, status: Arc::default(), ends_group: true, is_final: false, location }
    }

    /// Notes its line for the collectives made until the guard is dropped.
    pub(crate) fn enter(&self) -> site::Noted {
        let purpose = self.ends_group.then_some(Purpose::Of("its backward pass"));
        site::enter_at(self.location, purpose)
    }

    /// What is wrong with the device of this rank, as an error of the call.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA tensors come here"))]
    pub(crate) fn device_error(&self, error: DeviceError) -> Error {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        Error::Device { rank, world_size, error: error.into() }
    }

    /// As [`fail`](Self::fail), where the other ranks are in the collective already or on their way into it: without this
    /// one they would wait until its deadline.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA tensors come here"))]
    pub(crate) fn fail_alone(&self, error: Error) {
        self.group.abort(&format!("rank {} could not take part in a collective: {error}", self.group.rank()));
        self.fail(error);
    }

    /// Keeps the first error of this call.
    pub fn fail(&self, error: Error) {
        if self.ends_group {
            self.group.abort(&format!("rank {} failed in a backward pass: {error}", self.group.rank()));
        }
        self.status.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// The error that the op left, once.
    pub fn result(&self) -> Result<()> {
        match self.status.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// The [`Call`] of an operation that returns before its collective has ended.
///
/// It is made in a backward pass, so an error ends the group, as [`Call::fail`] says of those.
#[derive(Clone, Debug)]
pub struct AsyncCall {
    call: Call,
    work: Arc<Mutex<Option<DeviceWork>>>,
}

impl AsyncCall {
    /// A call on `group` that has not failed.
    #[track_caller]
    pub fn new(group: &ProcessGroup) -> Self {
        Self { call: Call::new(group).in_backward(), work: Arc::default() }
    }

    /// The group whose ranks all make this call, in the same order.
    pub fn group(&self) -> &ProcessGroup {
        &self.call.group
    }

    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a device returns early"))]
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Notes its line, and what the thread had noted that it is for.
    pub(crate) fn enter(&self) -> site::Noted {
        site::enter_at(self.call.location, None)
    }

    /// Keeps the first error, and ends the group.
    pub fn fail(&self, error: Error) {
        self.call.fail(error);
    }

    /// Keeps what is still under way.
    pub fn leave(&self, work: DeviceWork) {
        *self.work() = Some(work);
    }

    /// The error that the op left, once; to be asked right after the op, before anything is waited for.
    pub fn started(&self) -> Result<()> {
        self.call.result()
    }

    /// Returns when the result can be used; see [`DeviceWork::wait`].
    ///
    /// # Errors
    /// What the op left, or what ended the collective.
    pub fn wait(&self) -> Result<()> {
        self.started()?;
        self.work().as_ref().map_or(Ok(()), DeviceWork::wait)
    }

    /// Returns when the collective has ended, on a device too, and nothing holds its memory any more.
    ///
    /// # Errors
    /// What has ended the group before.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        self.work().as_ref().map_or(Ok(()), DeviceWork::wait_for_end)
    }

    fn work(&self) -> MutexGuard<'_, Option<DeviceWork>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_a_backward_pass_ends_the_group_and_one_in_a_forward_pass_does_not() {
        let group = ProcessGroup::single();
        let error = Error::TensorRead { cause: "the device is lost".into() };
        let forward = Call::new(&group);
        forward.fail(error.clone());
        assert!(forward.result().is_err());
        assert!(group.barrier().is_ok());
        forward.in_backward().fail(error);
        let ended = group.barrier().unwrap_err().to_string();
        assert!(
            ended.contains("failed in a backward pass") && ended.contains("the device is lost"),
            "{ended}"
        );
    }
}
