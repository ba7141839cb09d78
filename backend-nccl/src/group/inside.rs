//! Which group's job a thread runs, so that a job is told apart from a caller that may wait for it.
//!
//! A job has its turn until it ends. An operation of the same group that it called, or a work that it waited for, would
//! have a later one, and both would wait for ever.

use std::cell::Cell;

use crate::{Error, Result};

/// A group on this rank, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupId(usize);

thread_local! {
    /// The group whose job this thread runs. Jobs of one group never run within those of another.
    static RUNNING: Cell<Option<GroupId>> = const { Cell::new(None) };
}

/// The time in which this thread runs a job.
#[derive(Debug)]
pub(super) struct Inside(());

impl GroupId {
    /// The number of a core, which outlives all that waits for it.
    pub(super) fn of(core: &super::Core) -> Self {
        Self(std::ptr::from_ref(core).addr())
    }

    /// Notes that this thread runs a job of this group, until the result is dropped.
    pub(super) fn enter(self) -> Inside {
        RUNNING.set(Some(self));
        Inside(())
    }

    /// Refuses what would wait for the end of the job that this thread runs.
    pub(super) fn must_be_outside(self, call: &'static str) -> Result<()> {
        if RUNNING.get() == Some(self) { Err(Error::InsideJob { call }) } else { Ok(()) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        RUNNING.set(None);
    }
}
