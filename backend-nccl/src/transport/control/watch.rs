//! What ends a call that waits: one policy for all engines.

use std::time::Duration;

use super::{Control, standing::Standing};
use crate::{deadline::Deadline, failure::Failure};

/// How long data may trail the news that its sender is gone: they come over different connections.
const DATA_GRACE: Duration = Duration::from_secs(1);

/// Why a call will not end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The group has ended, or a rank has said that it will never come: no data that trails changes that.
    Certain(Failure),
    /// A rank of which the call needs something is gone. It may have done its part before.
    Gone(Failure),
}

impl Obstacle {
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Certain(failure) | Self::Gone(failure) => failure,
        }
    }
}

impl Control {
    /// Why the collective `sequence`, or a message where that is `None`, will not end, if it still needs something of the
    /// ranks `needed`.
    ///
    /// A collective is one of the whole group, even where only some of its ranks take part in a step of it: any rank that
    /// has failed or left before its end is an obstacle, whoever is waited for. A message concerns two ranks, but whoever
    /// has ended the group has ended it for them too.
    ///
    /// While some rank has not come to a collective nobody can have finished it: `needed` are all who take part. After
    /// that a rank that is lost matters to those only that still wait for it.
    pub(crate) fn obstacle_among(
        &self,
        sequence: Option<u64>,
        needed: impl IntoIterator<Item = usize>,
    ) -> Option<Obstacle> {
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Some(Obstacle::Certain(failure.clone()));
        }
        let told = state.peers.iter().enumerate().find_map(|(rank, peer)| match (&peer.standing, sequence) {
            (Standing::Failed(abort), None) => Some(abort.failure.clone()),
            (standing @ (Standing::Failed(_) | Standing::Left { .. }), Some(sequence)) => {
                standing.obstacle(rank, sequence)
            }
            _ => None,
        });
        if let Some(failure) = told {
            return Some(Obstacle::Certain(failure));
        }
        // Who has failed or left after this collective has done its part.
        let sequence = sequence.unwrap_or(u64::MAX);
        let gone = needed.into_iter().find_map(|rank| state.peers[rank].standing.obstacle(rank, sequence));
        gone.map(Obstacle::Gone)
    }

    /// Why the group has ended, or which rank is lost. A rank that has left on purpose is no reason.
    pub(crate) fn fault(&self) -> Option<Failure> {
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Some(failure.clone());
        }
        let faults = || state.peers.iter().enumerate().filter_map(|(rank, peer)| peer.standing.fault(rank));
        // What a rank has told names the cause; that another is lost may be its consequence.
        faults().find(|fault| !matches!(fault, Failure::PeerLost { .. })).or_else(|| faults().next())
    }
}

/// The looks of one call at what has become of the group, for engines whose data comes over connections of its own.
pub(crate) struct Watch<'a> {
    control: &'a Control,
    /// The collective; `None` for a message.
    sequence: Option<u64>,
    /// The changes of standing that have been looked at.
    seen: u64,
    /// Until when the data of a rank that is gone may still come.
    grace: Option<Deadline>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(control: &'a Control, sequence: Option<u64>) -> Self {
        // One less than now: what has happened before the call is looked at in its first wait.
        Self { control, sequence, seen: control.changes().wrapping_sub(1), grace: None }
    }

    /// Looks at what has become of the group, where that has changed. Called when no more data was there, so that what a
    /// peer has sent before its end is not lost. `needed` as for [`Control::obstacle_among`].
    ///
    /// # Errors
    ///
    /// Why the call will not end.
    pub(crate) fn look(&mut self, needed: impl FnOnce() -> Vec<usize>) -> Result<(), Failure> {
        let changes = self.control.changes();
        if changes == self.seen && !self.grace.is_some_and(|grace| grace.expired()) {
            return Ok(());
        }
        self.seen = changes;
        match self.control.obstacle_among(self.sequence, needed()) {
            Some(Obstacle::Certain(failure)) => Err(failure),
            Some(Obstacle::Gone(failure)) => {
                let grace = self.grace.get_or_insert_with(|| Deadline::after(DATA_GRACE));
                if grace.expired() { Err(failure) } else { Ok(()) }
            }
            None => {
                self.grace = None;
                Ok(())
            }
        }
    }

    /// The time until the next look at the latest, for `poll(2)`.
    pub(crate) fn poll_milliseconds(&self) -> i32 {
        self.grace.as_ref().map_or(i32::MAX, Deadline::poll_milliseconds)
    }
}
