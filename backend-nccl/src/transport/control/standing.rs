//! What is known about the other ranks. Plain values; the thread and the callers share them under one lock.

use std::collections::BTreeMap;

use super::notice::{Abort, Notice};
use crate::failure::Failure;

/// How a peer stands to the group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Here,
    /// It has left on purpose before this collective.
    Left { next: u64 },
    /// Its connection ended without a word.
    Lost { detail: String },
    /// It has told why the group ended.
    Failed(Abort),
}

impl Standing {
    /// Why a peer that stands so will never come to the collective `sequence`; `None` while it may.
    ///
    /// A peer that had finished the collective before it left or failed has sent all its bytes, and so have the others,
    /// who must have come for it to finish.
    pub(super) fn obstacle(&self, rank: usize, sequence: u64) -> Option<Failure> {
        match self {
            Self::Here => None,
            Self::Left { next } => (*next <= sequence).then_some(Failure::PeerLeft { rank }),
            Self::Lost { detail } => Some(Failure::PeerLost { rank, detail: detail.clone() }),
            Self::Failed(abort) => (abort.next <= sequence).then(|| abort.failure.clone()),
        }
    }

    /// What is wrong with a peer that stands so, whatever it had done before; `None` where it has left on purpose.
    pub(super) fn fault(&self, rank: usize) -> Option<Failure> {
        match self {
            Self::Here | Self::Left { .. } => None,
            Self::Lost { .. } | Self::Failed(_) => self.obstacle(rank, u64::MAX),
        }
    }
}

/// Values that ranks post under labels: what has come of each, in rank order.
#[derive(Debug, Default)]
pub(super) struct Posts(BTreeMap<String, Vec<Option<Vec<u8>>>>);

impl Posts {
    /// Keeps a value; the first one of a rank under a label stands.
    pub(super) fn put(&mut self, world_size: usize, rank: usize, label: String, value: Vec<u8>) {
        let values = self.0.entry(label).or_insert_with(|| vec![None; world_size]);
        values[rank].get_or_insert(value);
    }

    /// What has come under a label, in rank order.
    pub(super) fn get(&self, label: &str) -> Vec<Option<Vec<u8>>> {
        self.0.get(label).cloned().unwrap_or_default()
    }

    /// Takes all values under a label, or says whose are missing.
    pub(super) fn take(&mut self, world_size: usize, label: &str) -> Result<Vec<Vec<u8>>, Vec<usize>> {
        let missing: Vec<usize> = match self.0.get(label) {
            None => (0..world_size).collect(),
            Some(values) => (0..world_size).filter(|rank| values[*rank].is_none()).collect(),
        };
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(self.0.remove(label).into_iter().flatten().flatten().collect())
    }
}

/// Answers to this rank's questions, by number of the question and rank.
#[derive(Debug, Default)]
pub(super) struct Answers {
    numbers: u64,
    open: BTreeMap<u64, BTreeMap<usize, Vec<u8>>>,
}

impl Answers {
    /// Opens a question.
    pub(super) fn open(&mut self) -> u64 {
        self.numbers += 1;
        self.open.insert(self.numbers, BTreeMap::new());
        self.numbers
    }

    /// Keeps an answer; one to a question that is closed is late.
    pub(super) fn put(&mut self, number: u64, rank: usize, account: Vec<u8>) {
        if let Some(answers) = self.open.get_mut(&number) {
            answers.insert(rank, account);
        }
    }

    /// Whether this rank has answered.
    pub(super) fn has(&self, number: u64, rank: usize) -> bool {
        self.open.get(&number).is_some_and(|answers| answers.contains_key(&rank))
    }

    /// Closes a question and takes its answers.
    pub(super) fn close(&mut self, number: u64) -> BTreeMap<usize, Vec<u8>> {
        self.open.remove(&number).unwrap_or_default()
    }
}

/// What a rank knows of one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) standing: Standing,
    /// Bytes that are not a whole frame yet.
    pub(super) inbox: Vec<u8>,
}

impl Peer {
    /// Takes bytes that have come; changes the standing by what ends it, and returns the rest.
    pub(super) fn receive(&mut self, rank: usize, bytes: &[u8]) -> Vec<Notice> {
        self.inbox.extend_from_slice(bytes);
        let mut notices = Vec::new();
        while self.standing == Standing::Here {
            match Notice::take(&mut self.inbox) {
                Ok(None) => break,
                Ok(Some(Notice::Goodbye { next })) => self.standing = Standing::Left { next },
                Ok(Some(Notice::Abort(abort))) => self.standing = Standing::Failed(abort),
                Ok(Some(notice)) => notices.push(notice),
                Err(detail) => {
                    let failure = Failure::Protocol { rank, detail };
                    self.standing = Standing::Failed(Abort { failure, next: 0 });
                }
            }
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_had_finished_a_collective_is_no_obstacle_to_it() {
        let failure = Failure::Aborted { rank: 2, reason: "enough".into() };
        let failed = Standing::Failed(Abort { failure: failure.clone(), next: 5 });
        assert_eq!((failed.obstacle(1, 4), failed.obstacle(1, 5)), (None, Some(failure)));
        let left = Standing::Left { next: 5 };
        assert_eq!((left.obstacle(1, 4), left.obstacle(1, 5)), (None, Some(Failure::PeerLeft { rank: 1 })));
        // The first of all is the barrier of the set-up.
        assert_eq!(Standing::Left { next: 0 }.obstacle(1, 0), Some(Failure::PeerLeft { rank: 1 }));
        assert_eq!(Standing::Left { next: 1 }.obstacle(1, 0), None);
        assert_eq!(Standing::Here.obstacle(1, 9), None);
        let lost = Standing::Lost { detail: "reset".into() };
        assert!(matches!(lost.obstacle(1, 1), Some(Failure::PeerLost { rank: 1, .. })));
    }

    #[test]
    fn a_peer_that_is_lost_or_has_failed_is_a_fault_and_one_that_has_left_is_not() {
        let failure = Failure::Aborted { rank: 2, reason: "enough".into() };
        let failed = Standing::Failed(Abort { failure: failure.clone(), next: 5 });
        let lost = Failure::PeerLost { rank: 1, detail: "reset".into() };
        assert_eq!(failed.fault(1), Some(failure));
        assert_eq!(Standing::Lost { detail: "reset".into() }.fault(1), Some(lost));
        assert_eq!((Standing::Left { next: 5 }.fault(1), Standing::Here.fault(1)), (None, None));
    }

    #[test]
    fn posts_are_complete_when_every_rank_has_posted_and_the_first_value_stands() {
        let mut posts = Posts::default();
        posts.put(2, 1, "a".into(), vec![1]);
        posts.put(2, 1, "a".into(), vec![9]);
        assert_eq!((posts.take(2, "a"), posts.take(2, "b")), (Err(vec![0]), Err(vec![0, 1])));
        posts.put(2, 0, "a".into(), vec![]);
        assert_eq!(posts.take(2, "a"), Ok(vec![vec![], vec![1]]));
        assert_eq!(posts.take(2, "a"), Err(vec![0, 1]));
    }

    #[test]
    fn a_frame_that_is_none_ends_the_group_and_nothing_after_the_end_counts() {
        let mut peer = Peer::default();
        assert!(peer.receive(3, &[0; 16]).is_empty());
        assert!(matches!(peer.standing.obstacle(3, 1), Some(Failure::Protocol { rank: 3, .. })));
        let mut peer = Peer::default();
        let mut bytes = Notice::Goodbye { next: 1 }.encode();
        bytes.extend(Notice::Post { label: "late".into(), value: vec![] }.encode());
        assert!(peer.receive(3, &bytes).is_empty());
    }
}
