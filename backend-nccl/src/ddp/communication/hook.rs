//! The trait of a communication hook.

use std::fmt;

use super::{BucketLayout, GradientBucket};
use crate::group::Reserved;

/// Any error of a hook.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// What a hook keeps from step to step, for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookState {
    /// What is the same on all ranks.
    pub shared: Vec<u8>,
    /// What is this rank's own.
    pub own: Vec<u8>,
}

/// Makes a bucket of gradients the average over all ranks.
///
/// For each bucket, in bucket order, [`average`](Self::average) runs on the group's communication thread while the
/// backward pass goes on; [`finish`](Self::finish) runs once at the end of the step. An error or a panic ends the group
/// on all ranks: the rank returns [`Error::CommunicationHook`](crate::Error::CommunicationHook) from its backward pass, the
/// others the news of it, and no optimizer step is taken on half a gradient.
///
/// ```
/// use burn_nccl::ddp::communication::{CommunicationHook, GradientBucket, HookError};
/// use burn_nccl::group::Reserved;
///
/// /// Averages, then adds the same drop of noise on every rank.
/// #[derive(Debug)]
/// struct Noisy {
///     amplitude: f32,
/// }
///
/// impl CommunicationHook for Noisy {
///     fn name(&self) -> String {
///         format!("noisy {}", self.amplitude)
///     }
///
///     fn average(
///         &mut self,
///         bucket: &mut GradientBucket<'_>,
///         collectives: &mut Reserved<'_>,
///     ) -> Result<(), HookError> {
///         let (dtype, op) = (bucket.dtype(), bucket.op());
///         collectives.all_reduce(bucket.bytes_mut(), dtype, op)?;
///         for (index, value) in bytemuck::cast_slice_mut::<u8, f32>(bucket.bytes_mut()).iter_mut().enumerate() {
///             *value += self.amplitude * (index as f32).sin();
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// Source: `DistributedDataParallel.register_comm_hook` of PyTorch, whose hooks return a future instead.
pub trait CommunicationHook: Send + fmt::Debug {
    /// What it is, with its options. Ranks with different names are refused at construction.
    fn name(&self) -> String;

    /// Looks at what will be averaged, once, before training.
    ///
    /// # Errors
    /// Why it cannot: an element type, an option. It must not depend on the rank.
    fn prepare(&mut self, buckets: &[BucketLayout], world_size: usize) -> Result<(), HookError> {
        let _ = (buckets, world_size);
        Ok(())
    }

    /// The most collectives that [`average`](Self::average) runs for a bucket. The same on all ranks.
    fn collectives(&self) -> u64 {
        1
    }

    /// Replaces the gradients in `bucket` by the average over ranks, with the same bits on every rank, by at most
    /// [`collectives`](Self::collectives) calls of `collectives`, the same ones on every rank.
    ///
    /// It must not change what is kept from step to step, since the step may still fail on another rank.
    ///
    /// # Errors
    /// What a collective returns, and whatever else must end the training.
    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError>;

    /// Ends a step, on the thread that called the backward pass, once all buckets are averaged on this rank and all ranks
    /// know which parameters were used. `buckets` hold what [`average`](Self::average) left and may still be changed, alike
    /// on every rank. No collective can run here.
    ///
    /// # Errors
    /// Whatever must end the training.
    fn finish(&mut self, buckets: &mut [GradientBucket<'_>]) -> Result<(), HookError> {
        let _ = buckets;
        Ok(())
    }

    /// What it keeps from step to step, if anything.
    fn state(&self) -> Option<HookState> {
        None
    }

    /// Goes on with a saved state.
    ///
    /// # Errors
    /// Where it is not this hook's, of this model; nothing has changed then.
    fn load_state(&mut self, state: &HookState) -> Result<(), HookError> {
        let _ = state;
        Err("it keeps no state".into())
    }
}
