//! Ranks ask each other how they stand. The control thread answers, whatever its rank computes or waits for.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{Control, Shared, State, link::Link, notice::Notice, standing::Standing};
use crate::{
    deadline::Deadline,
    failure::Failure,
    transport::{Signature, Witness},
};

/// How long sending one question or answer may take.
const SEND_LIMIT: Duration = Duration::from_millis(50);

/// A question of another rank: its number, and the operation that it is about.
pub(super) type Question = (u64, Option<Signature>);

impl Control {
    /// Who answers the questions of other ranks from now on.
    pub(crate) fn set_witness(&self, witness: Arc<dyn Witness>) {
        let _ = self.shared.witness.set(witness);
    }

    pub(crate) fn witness(&self) -> Option<&Arc<dyn Witness>> {
        self.shared.witness.get()
    }

    /// Asks `ranks` how they stand and, where `about` names one, about an operation of theirs. `None` for those that do
    /// not answer within `limit`; those that have left or failed are not waited for.
    pub(crate) fn ask(
        &self,
        ranks: &[usize],
        about: Option<Signature>,
        limit: Duration,
    ) -> Vec<Option<Vec<u8>>> {
        let (shared, deadline) = (&self.shared, Deadline::after(limit));
        let number = shared.lock().answers.open();
        let frame = Notice::Ask { number, about }.encode();
        for link in shared.links.iter().filter(|link| ranks.contains(&link.rank)) {
            // One that cannot be told does not answer either.
            let _ = link.send(&frame, Deadline::after(deadline.remaining().min(SEND_LIMIT)));
        }
        let mut state = shared.lock();
        let may_answer = |state: &State, rank: usize| {
            state.peers[rank].standing == Standing::Here && !state.answers.has(number, rank)
        };
        while ranks.iter().any(|rank| may_answer(&state, *rank)) && !deadline.expired() {
            let wait = shared.posted.wait_timeout(state, deadline.remaining());
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut answers = state.answers.close(number);
        ranks.iter().map(|rank| answers.remove(rank)).collect()
    }
}

impl Shared {
    /// Answers what the rank of `link` asks, and passes on the news that it has ended the group.
    pub(super) fn bear_witness(&self, link: &Link, questions: Vec<Question>, ended: Option<Failure>) {
        let Some(witness) = self.witness.get() else { return };
        for (number, about) in questions {
            let frame = Notice::Answer { number, account: witness.account(link.rank, about) }.encode();
            // One that does not hear the answer is told nothing by it.
            let _ = link.send(&frame, Deadline::after(SEND_LIMIT));
        }
        if let Some(failure) = ended {
            witness.hear(&failure);
        }
    }
}
