//! The communicators of a group, one for each GPU that this rank has used in it.

use std::sync::{Arc, Mutex, PoisonError};

use super::Nccl;
use crate::Result;

/// The communicators that a group has made so far.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Vec<(usize, Arc<Nccl>)>>);

impl Slots {
    /// The communicator of a GPU, made by the first call. Held for its time: who comes meanwhile needs the same one.
    pub(crate) fn get_or_connect(
        &self,
        ordinal: usize,
        connect: impl FnOnce() -> Result<Nccl>,
    ) -> Result<Arc<Nccl>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nccl)) = slots.iter().find(|(known, _)| *known == ordinal) {
            return Ok(nccl.clone());
        }
        let nccl = Arc::new(connect()?);
        slots.push((ordinal, nccl.clone()));
        Ok(nccl)
    }

    /// The communicators that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Nccl>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, nccl)| nccl.clone()).collect()
    }

    /// Leaves all communicators, once their operations have ended or their deadlines have passed.
    pub(crate) fn close(&self) {
        let slots = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        slots.iter().for_each(|(_, nccl)| nccl.close());
    }
}
