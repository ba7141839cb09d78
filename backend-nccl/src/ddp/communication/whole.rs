//! Gradients as they are.

use super::{CommunicationHook, GradientBucket, HookError};
use crate::group::Reserved;

/// One all-reduce of each bucket, in place. PyTorch: `allreduce_hook`, and what it does without a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllReduce;

impl CommunicationHook for AllReduce {
    fn name(&self) -> String {
        "all-reduce".into()
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        let (dtype, op) = (bucket.dtype(), bucket.op());
        Ok(collectives.all_reduce(bucket.bytes_mut(), dtype, op)?)
    }
}
