//! What is to carry the tensors of GPUs, compared before the first collective on one.

use std::time::Duration;

use super::core::Core;
use crate::{
    Error, Result,
    deadline::Deadline,
    device_error::DeviceError,
    failure::{Failure, Ranks},
    transport::DeviceTransport,
};

/// How long a rank that goes by the host waits for the others to say how they go.
const HOST_LIMIT: Duration = Duration::from_secs(10);

impl Core {
    /// Compares what is to carry the tensors of GPUs on all ranks, each of which comes here with its first collective on a
    /// CUDA tensor: where one goes by the host's transport and another by NCCL, both would wait for the other.
    pub(super) fn compare_wishes(&self, wish: DeviceTransport) -> Result<()> {
        const LABEL: &str = "device/transport";
        let (rank, world_size, is_host) = (self.rank, self.world_size, wish == DeviceTransport::Host);
        let limit = self.options.connect_timeout.min(if is_host { HOST_LIMIT } else { Duration::MAX });
        let wishes = match self.transport.gather(LABEL, &[u8::from(is_host)], Deadline::after(limit)) {
            Ok(wishes) => wishes.into_iter().map(Some).collect(),
            // Who has not come may have its tensors on a CPU, which the host's transport does not mind.
            Err(Failure::Deadline { .. }) if is_host => self.transport.posted(LABEL),
            Err(failure) => {
                if let Failure::Deadline { missing, .. } = &failure {
                    let missing = Ranks(missing);
                    log::error!("{missing} did not call a collective on a CUDA tensor; is theirs on a CPU?");
                }
                let failure = self.transport.abort(failure);
                return Err(Error::SetUp { rank, world_size, failure });
            }
        };
        let first =
            |is_host: bool| wishes.iter().position(|wish| wish.as_deref() == Some(&[u8::from(is_host)]));
        let (Some(rank), Some(other)) = (first(false), first(true)) else { return Ok(()) };
        let found = "goes through host memory (BURN_NCCL_DEVICE_TRANSPORT=host)".into();
        let error = Box::new(DeviceError::DevicesDiffer { rank, other, found });
        Err(Error::Device { rank: other, world_size, error })
    }
}
