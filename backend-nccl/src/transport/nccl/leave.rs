//! The end of a communicator.

use std::time::Duration;

use super::{refused::Refused, shared::Shared};
use crate::deadline::Deadline;

/// How long a rank waits for the others before it leaves: what it has sent may still be on its way to them.
const BARRIER_LIMIT: Duration = Duration::from_secs(30);
/// How long NCCL may take to finish.
const FINALIZE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(200);

/// The longest that leaving takes once all operations have ended.
pub(super) const LIMIT: Duration = Duration::from_secs(50);

/// Leaves a communicator whose operations have ended: together with the other ranks, or by an abort where it has failed.
pub(super) fn leave(shared: &Shared) {
    if let Some(failure) = shared.progress.failure() {
        log::debug!("rank {} leaves a communicator that has failed: {failure}", shared.rank);
        return shared.comm.abort();
    }
    let barrier = Deadline::after(BARRIER_LIMIT.min(shared.timeout));
    let tally = serde_json::to_vec(&shared.progress.tally()).unwrap_or_default();
    if let Err(failure) = shared.group.gather(&label(shared), &tally, barrier) {
        log::debug!("rank {} leaves its communicator alone: {failure}", shared.rank);
        return shared.comm.abort();
    }
    shared.progress.leaving(FINALIZE_LIMIT);
    if let Err(refused) = finalize(shared) {
        log::warn!("rank {} could not leave its communicator in good order: {refused:?}", shared.rank);
        shared.comm.abort();
    }
}

/// A rank that waits to leave, and has not done its part of an operation that is under way here: it never will.
pub(super) fn leaver(shared: &Shared) -> Option<usize> {
    let wishes = shared.group.posted(&label(shared)).into_iter().enumerate();
    let mut wishes = wishes.filter_map(|(rank, wish)| Some((rank, wish?)));
    let lacks = |(rank, wish): &(usize, Vec<u8>)| {
        let tally = serde_json::from_slice(wish).ok();
        *rank != shared.rank
            && tally.is_some_and(|tally| shared.progress.needs_more(*rank, &tally, shared.rank))
    };
    wishes.find(lacks).map(|(rank, _)| rank)
}

fn label(shared: &Shared) -> String {
    format!("{}/leave", shared.label)
}

fn finalize(shared: &Shared) -> Result<(), Refused> {
    const ACTION: &str = "finalize its communicator";
    let (comm, deadline) = (&shared.comm, Deadline::after(FINALIZE_LIMIT));
    comm.call("ncclCommFinalize", ACTION, |functions, comm| {
        // SAFETY: the communicator lives for the length of the call.
        unsafe { (functions.comm_finalize)(comm.raw()) }
    })?;
    while !comm.is_settled(ACTION)? {
        if deadline.expired() {
            log::warn!("NCCL does not finish within {FINALIZE_LIMIT:?}");
            comm.abort();
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    comm.destroy()
}
