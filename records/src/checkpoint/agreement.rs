//! Rank 0 decides, and every rank learns what.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use burn_nccl::ProcessGroup;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest that the other ranks hear nothing of rank 0: far below the deadline of a collective, so that work of any
/// length on rank 0 does not look like a rank that is lost.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);

/// What a rank says in each round: the call it is in, and on rank 0 the decision, once there is one.
#[derive(Serialize, Deserialize)]
struct Message<T> {
    call: String,
    decision: Option<T>,
}

/// What `poll` returns on rank 0, on every rank. `poll` waits for as long as it is given and may then return none; it is
/// called on rank 0 alone.
///
/// # Errors
/// [`Error::CheckpointCalls`], on every rank, where ranks are in different calls; a lost rank as the group's error.
pub(super) fn decide<T: Serialize + DeserializeOwned>(
    group: Option<&ProcessGroup>,
    call: &str,
    mut poll: impl FnMut(Duration) -> Option<T>,
) -> Result<T> {
    let silence = group.map_or(LONGEST_SILENCE, |group| LONGEST_SILENCE.min(group.options().timeout / 4));
    let is_decider = group.is_none_or(|group| group.rank() == 0);
    loop {
        let own = if is_decider { poll(silence) } else { None };
        let decision = match group.filter(|group| group.world_size() > 1) {
            Some(group) => exchange(group, call, own)?,
            None => own,
        };
        if let Some(decision) = decision {
            return Ok(decision);
        }
    }
}

/// As [`decide`], by work that may take long. Where the group fails meanwhile, this does not wait for the work's end.
pub(super) fn decide_by<T: Serialize + DeserializeOwned + Send + 'static>(
    group: Option<&ProcessGroup>,
    call: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if group.is_some_and(|group| group.rank() != 0) {
        return decide(group, call, |_| None);
    }
    let work = Background::start(work);
    decide(group, call, |patience| work.poll(patience))
}

/// Work in a thread of its own, whose end [`decide`] can poll for.
pub(super) struct Background<T>(Receiver<T>);

impl<T: Send + 'static> Background<T> {
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Nobody listens any more where the group has failed.
            let _ = sender.send(work());
        });
        Self(receiver)
    }

    /// What it returned; none if it has not after `patience`.
    pub(super) fn poll(&self, patience: Duration) -> Option<T> {
        match self.0.recv_timeout(patience) {
            Ok(value) => Some(value),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("work on a folder of checkpoints panicked"),
        }
    }
}

/// Whether `own` is true on each rank, on every rank.
pub(super) fn gather(group: Option<&ProcessGroup>, own: bool) -> Result<Vec<bool>> {
    let Some(group) = group else { return Ok(vec![own]) };
    let all = group.all_gather_bytes(&[u8::from(own)])?;
    Ok(all.iter().map(|value| value.first() == Some(&1)).collect())
}

fn exchange<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    call: &str,
    decision: Option<T>,
) -> Result<Option<T>> {
    let own = Message { call: call.to_owned(), decision };
    let own = serde_json::to_vec(&own).expect("plain data with text for keys is JSON");
    let mut expected = None;
    let mut decided = None;
    for (rank, message) in group.all_gather_bytes(&own)?.iter().enumerate() {
        let Message { call: found, decision } =
            serde_json::from_slice::<Message<T>>(message).map_err(|_| Error::CheckpointCalls {
                rank,
                found: "another call".into(),
                expected: call.into(),
            })?;
        let expected = expected.get_or_insert_with(|| found.clone());
        if found != *expected {
            return Err(Error::CheckpointCalls { rank, found, expected: expected.clone() });
        }
        decided = decided.or(decision);
    }
    Ok(decided)
}
