//! Where gradients lie until they are averaged, and what averages them. The reducer decides what happens when; this does
//! it, in host memory or on the gradients' device.

mod bytes;
mod choice;
mod memory;
mod parts;
mod tensors;

use burn::tensor::{Bytes, Tensor};

pub(crate) use bytes::HostStorage;
pub(crate) use choice::{Candidate, choose};
pub(crate) use tensors::{TensorStorage, Wire};

use super::communication::Terms;
use crate::error::Result;
use crate::hook::ArrivedGradient;

/// How a gradient is given to the optimizer: where it was averaged.
#[derive(Debug)]
pub(crate) enum Averaged {
    /// In host memory.
    Bytes(Bytes),
    /// On the parameter's device, with one dimension.
    Tensor(Box<Tensor<1>>),
}

/// The gradients of a model on their way through a step.
///
/// Nothing here may block on another rank or panic but for [`wait`](Self::wait) and [`hand_out`](Self::hand_out): the rest
/// runs inside of the backward pass. The one exception is [`launch`](Self::launch) of tensors that the group's host
/// transport moves, which is there for comparison: it waits for the reduction, and the group's deadline ends it.
pub(crate) trait Storage: Send {
    /// Makes room for the gradients of a backward pass, beside what earlier micro-batches have left.
    fn begin(&mut self);

    /// Takes a gradient of the size and type of its slot, in addition to what is there if `adds`.
    fn put(&mut self, parameter: usize, gradient: &ArrivedGradient<'_>, adds: bool) -> Result<()>;

    /// Multiplies a gradient that is there.
    fn scale(&mut self, parameter: usize, factor: f64);

    /// Lets a parameter without a gradient contribute zeros.
    fn clear(&mut self, parameter: usize);

    /// Starts to average a bucket. Its gradients count `share` times.
    ///
    /// # Errors
    /// What keeps this rank from taking part, after ending the group.
    fn launch(&mut self, bucket: usize, share: f64, terms: Terms) -> Result<()>;

    /// Waits for the next bucket that was launched.
    ///
    /// # Errors
    /// What has ended the group.
    fn wait(&mut self) -> Result<()>;

    /// Ends a step all of whose buckets were waited for: the average of each parameter that is `used`.
    ///
    /// # Errors
    /// What must end the training.
    fn hand_out(&mut self, used: &[bool], terms: Terms) -> Result<Vec<Option<Averaged>>>;

    /// Drops what a step has left.
    fn forget(&mut self);
}
