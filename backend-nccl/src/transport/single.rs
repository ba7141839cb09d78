//! A group of one: every collective is the identity.

use std::sync::OnceLock;

use super::{Call, Collective, Transport};
use crate::{deadline::Deadline, failure::Failure};

/// The transport of a world of one rank.
#[derive(Debug, Default)]
pub(crate) struct Single {
    failure: OnceLock<Failure>,
}

impl Transport for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn execute(&self, _call: Call, collective: Collective<'_>) -> Result<(), Failure> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        match collective {
            Collective::AllReduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => {}
            Collective::AllGather { send, recv, .. }
            | Collective::ReduceScatter { send, recv, .. }
            | Collective::AllToAll { send, recv, .. } => recv.copy_from_slice(send),
            Collective::Gather { send, recv, .. } => recv.unwrap_or_default().copy_from_slice(send),
            Collective::Scatter { send, recv, .. } => recv.copy_from_slice(send.unwrap_or_default()),
            Collective::Exchange { .. } => unreachable!("the group refuses messages to itself"),
        }
        Ok(())
    }

    fn abort(&self, failure: Failure) -> Failure {
        self.failure.get_or_init(|| failure).clone()
    }

    fn obstacle(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn fault(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn gather(&self, _label: &str, value: &[u8], _deadline: Deadline) -> Result<Vec<Vec<u8>>, Failure> {
        Ok(vec![value.to_vec()])
    }

    fn close(&self) {}
}
