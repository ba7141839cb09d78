//! What the threads of a communicator share: its owner, its watchdog, and who waits for its operations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    communicator::Communicator, event::Events, gpu::Gpu, leave, progress::Progress, refused::Refused,
};
use crate::{failure::Failure, transport::Transport};

/// How long operations may go on after a rank has left or is lost: what they need of it may be on its way.
const GRACE: Duration = Duration::from_secs(1);
/// The pause between two looks for ranks that wait to leave.
const WISH_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// The limit of one operation, from its start.
    pub(super) timeout: Duration,
    /// What the group's barriers for this communicator begin with.
    pub(super) label: String,
    pub(super) group: Arc<dyn Transport>,
    pub(super) gpu: Arc<Gpu>,
    pub(super) events: Arc<Events>,
    pub(super) comm: Communicator,
    pub(super) progress: Progress,
    /// The newest operation that the whole context waits for.
    pub(super) held: AtomicU64,
}

impl Shared {
    /// Ends the group by a failure of this communicator, and this communicator by the group's first failure. Who waits for
    /// an operation hears it at once; aborting is up to the caller.
    pub(super) fn fail(&self, failure: Failure) -> Failure {
        match self.progress.failure() {
            Some(first) => first,
            None => self.progress.fail(self.group.abort(failure)),
        }
    }

    /// Why nothing more can start: the group has ended, or a rank is lost. One that has left is another matter, since what
    /// starts now may need what it sent before.
    pub(super) fn end_of_group(&self) -> Option<Failure> {
        self.group.obstacle().filter(|failure| !matches!(failure, Failure::PeerLeft { .. }))
    }

    /// What ends the group where something was refused: the first failure, where that is why.
    pub(super) fn failure_of(&self, refused: Refused) -> Failure {
        let aborted =
            || Failure::Aborted { rank: self.rank, reason: "its communicator has been aborted".into() };
        let failure = refused.failure(self.rank).or_else(|| self.progress.failure());
        failure.unwrap_or_else(aborted)
    }

    /// Lets all that is submitted to the context from now on wait for the operation `number`. What waits for a later one
    /// waits for all before it, since they have one stream.
    pub(super) fn hold(&self, number: u64, done: &super::event::Event) -> Result<(), Refused> {
        if self.held.load(Ordering::Acquire) >= number {
            return Ok(());
        }
        done.hold_context()?;
        self.held.fetch_max(number, Ordering::AcqRel);
        Ok(())
    }
}

/// A look for reasons why operations will not end.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Since when a rank has been gone.
    gone: Option<Instant>,
    /// When it was looked for ranks that wait to leave.
    wishes: Option<Instant>,
}

impl Trouble {
    /// Why what has started will not end, if that is so.
    pub(super) fn look(&mut self, shared: &Shared) -> Option<Failure> {
        if let Some(failure) = shared.progress.failure() {
            return Some(failure);
        }
        if let Some(failure) = shared.group.obstacle().or_else(|| self.wish(shared)) {
            let is_gone = matches!(failure, Failure::PeerLost { .. } | Failure::PeerLeft { .. });
            if !is_gone || self.gone.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                return Some(failure);
            }
        }
        shared.progress.overdue()
    }

    /// The rank that waits to leave while it is needed.
    fn wish(&mut self, shared: &Shared) -> Option<Failure> {
        if self.gone.is_none() && self.wishes.is_some_and(|last| last.elapsed() < WISH_PAUSE) {
            return None;
        }
        self.wishes = Some(Instant::now());
        leave::leaver(shared).map(|rank| Failure::PeerLeft { rank })
    }
}
