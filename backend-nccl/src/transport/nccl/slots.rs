//! The communicators of a group, one for each GPU that this rank has used in it.

use std::sync::{Arc, Mutex, PoisonError};

use super::Nccl;
use crate::Result;

/// The communicators that a group has made so far.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    /// How often one was begun, the failed ones too: what the ranks tell each other for one must not meet another's.
    begun: u64,
    by_ordinal: Vec<(usize, Arc<Nccl>)>,
}

impl Slots {
    /// The communicator of a GPU, made by the first call with its number. Held for its time: who comes meanwhile needs the
    /// same one.
    pub(crate) fn get_or_connect(
        &self,
        ordinal: usize,
        connect: impl FnOnce(u64) -> Result<Nccl>,
    ) -> Result<Arc<Nccl>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nccl)) = made.by_ordinal.iter().find(|(known, _)| *known == ordinal) {
            return Ok(nccl.clone());
        }
        made.begun += 1;
        let nccl = Arc::new(connect(made.begun)?);
        made.by_ordinal.push((ordinal, nccl.clone()));
        Ok(nccl)
    }

    /// Whether any communicator has been begun.
    pub(crate) fn is_used(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begun > 0
    }

    /// The communicators that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Nccl>> {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.by_ordinal.iter().map(|(_, nccl)| nccl.clone()).collect()
    }

    /// Leaves all communicators, once their operations have ended or their deadlines have passed.
    pub(crate) fn close(&self) {
        let made = std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).by_ordinal);
        made.iter().for_each(|(_, nccl)| nccl.close());
    }
}
