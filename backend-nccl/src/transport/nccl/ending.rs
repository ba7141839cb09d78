//! The end of an operation: its memory is let go of, and who waits is told.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::operation::OnEnd;
use crate::failure::Failure;

/// What is left to do for an operation when the device is done with it.
pub(super) struct Ending {
    pub(super) keep: Box<dyn Any + Send>,
    pub(super) on_end: OnEnd,
}

impl Ending {
    /// Lets go of the memory, and tells of the end. Neither's panic is this thread's.
    pub(super) fn run(self, failure: Option<&Failure>) {
        let Self { keep, on_end } = self;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(keep)));
        let told = catch_unwind(AssertUnwindSafe(|| on_end(failure)));
        if dropped.is_err() || told.is_err() {
            log::error!("the end of a collective on a GPU has panicked where it was called");
        }
    }

    /// Tells of the end and never lets go of the memory.
    pub(super) fn leak(self, failure: &Failure) {
        let Self { keep, on_end } = self;
        std::mem::forget(keep);
        let told = catch_unwind(AssertUnwindSafe(|| on_end(Some(failure))));
        if told.is_err() {
            log::error!("the end of a collective on a GPU has panicked where it was called");
        }
    }
}
