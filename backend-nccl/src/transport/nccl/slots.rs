//! The communicators of a group, one for each GPU that this rank has used in it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Nccl;
use crate::{Result, transport::DeviceTransport};

/// The communicators that a group has made so far.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    made: Mutex<Made>,
    /// What should carry tensors on GPUs, once it has been asked.
    wish: OnceLock<DeviceTransport>,
    /// Held while one is made: who comes meanwhile needs the same one. Who only asks what there is does not wait for it.
    making: Mutex<()>,
    /// Whether the ranks go the same way, once they have compared.
    agreed: Mutex<Option<Result<()>>>,
}

#[derive(Debug, Default)]
struct Made {
    /// How often one was begun, the failed ones too: what the ranks tell each other for one must not meet another's.
    begun: u64,
    by_ordinal: Vec<(usize, Arc<Nccl>)>,
}

impl Slots {
    /// What should carry tensors on GPUs. It is looked up once: every layer with a collective of its own asks in every step.
    ///
    /// # Errors
    ///
    /// What `look_up` returns, in each call until it is found.
    pub(crate) fn wish(&self, look_up: impl FnOnce() -> Result<DeviceTransport>) -> Result<DeviceTransport> {
        match self.wish.get() {
            Some(wish) => Ok(*wish),
            None => look_up().map(|wish| *self.wish.get_or_init(|| wish)),
        }
    }

    /// What the comparison of the ranks has come to, which the first call makes.
    ///
    /// # Errors
    ///
    /// That of the comparison.
    pub(crate) fn agree(&self, compare: impl FnOnce() -> Result<()>) -> Result<()> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(compare).clone()
    }

    /// The communicator of a GPU, made by the first call with its number.
    ///
    /// # Errors
    ///
    /// Those of `connect`.
    pub(crate) fn get_or_connect(
        &self,
        ordinal: usize,
        connect: impl FnOnce(u64) -> Result<Nccl>,
    ) -> Result<Arc<Nccl>> {
        let find = |made: &Made| {
            let mut known = made.by_ordinal.iter();
            known.find(|(known, _)| *known == ordinal).map(|(_, nccl)| nccl.clone())
        };
        if let Some(nccl) = find(&self.lock()) {
            return Ok(nccl);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let number = {
            let mut made = self.lock();
            if let Some(nccl) = find(&made) {
                return Ok(nccl);
            }
            made.begun += 1;
            made.begun
        };
        let nccl = Arc::new(connect(number)?);
        self.lock().by_ordinal.push((ordinal, nccl.clone()));
        Ok(nccl)
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        // It guards plain values that are valid at every step.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any communicator has been begun.
    pub(crate) fn is_used(&self) -> bool {
        self.lock().begun > 0
    }

    /// The communicators that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Nccl>> {
        self.lock().by_ordinal.iter().map(|(_, nccl)| nccl.clone()).collect()
    }

    /// Leaves all communicators, once their operations have ended or their deadlines have passed.
    pub(crate) fn close(&self) {
        let made = std::mem::take(&mut self.lock().by_ordinal);
        made.iter().for_each(|(_, nccl)| nccl.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn what_should_carry_tensors_is_looked_up_until_it_is_found_and_not_again() {
        let slots = Slots::default();
        let error = Error::TensorRead { cause: "unreadable".into() };
        assert!(slots.wish(|| Err(error)).is_err());
        assert_eq!(slots.wish(|| Ok(DeviceTransport::Nccl)).unwrap(), DeviceTransport::Nccl);
        assert_eq!(slots.wish(|| panic!("it is known")).unwrap(), DeviceTransport::Nccl);
    }
}
