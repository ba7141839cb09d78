//! Whether a group is in order.

use super::ProcessGroup;
use crate::failure::Failure;

impl ProcessGroup {
    /// Whether the group has failed or a rank is lost, without a collective; any rank may ask at any time.
    ///
    /// Where NCCL's stream waits for the computation on the GPU itself
    /// ([`StreamOrdering::ContextEvents`](crate::transport::StreamOrdering::ContextEvents)), a step that training has
    /// gone past may still be under way there. If it fails, what is computed from it are numbers and no error: the group
    /// has failed before any of them can be read. So ask after the last value has been read, and before it is relied on.
    ///
    /// A rank that has left on purpose is no failure: it leaves after its last collective, which has ended here too or
    /// will fail.
    ///
    /// # Errors
    ///
    /// Why the group has ended, or which rank is lost.
    pub fn check_health(&self) -> Result<(), Failure> {
        self.inner.core.transport.fault().map_or(Ok(()), Err)
    }

    /// Whether values that have been read can be relied on: as [`check_health`](Self::check_health), but that a rank which
    /// is lost harms no value where NCCL carries nothing, since every step there has ended before the next begins.
    ///
    /// # Errors
    ///
    /// As [`check_health`](Self::check_health).
    pub fn check_values(&self) -> Result<(), Failure> {
        match self.check_health() {
            Err(Failure::PeerLost { .. }) if !self.inner.core.devices.is_used() => Ok(()),
            health => health,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::group::GroupOptions;

    fn two() -> (ProcessGroup, ProcessGroup) {
        let mut ranks = ProcessGroup::local(2, GroupOptions::default()).unwrap();
        let second = ranks.pop().unwrap();
        (ranks.pop().unwrap(), second)
    }

    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "nothing has changed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_rank_that_has_left_on_purpose_is_no_failure_of_the_group() {
        let (first, second) = two();
        assert_eq!(first.check_health(), Ok(()));
        drop(second);
        let obstacle = wait_for(|| first.inner.core.transport.obstacle());
        assert_eq!(obstacle, Failure::PeerLeft { rank: 1 });
        assert_eq!(first.check_health(), Ok(()));
        // A collective that it does not come to ends the group.
        first.barrier().unwrap_err();
        assert_eq!(first.check_health(), Err(Failure::PeerLeft { rank: 1 }));
    }

    #[test]
    fn what_ended_the_group_is_known_on_all_ranks_without_a_collective() {
        let (first, second) = two();
        second.abort("it has had enough");
        let cause = Failure::Aborted { rank: 1, reason: "it has had enough".into() };
        assert_eq!(second.check_health(), Err(cause.clone()));
        assert_eq!(wait_for(|| first.check_health().err()), cause);
        let alone = ProcessGroup::single();
        assert_eq!(alone.check_health(), Ok(()));
        alone.abort("it, too");
        assert!(alone.check_health().is_err());
    }
}
