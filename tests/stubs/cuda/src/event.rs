//! An event: the points of streams that it has captured.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use stubs::lock;

use crate::stream::Mark;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

pub(crate) struct Event {
    /// The ordinal of its GPU.
    pub(crate) device: usize,
    flags: u32,
    record: Mutex<Record>,
}

/// What the last record captured. An event that was never recorded counts as done.
#[derive(Clone, Default)]
struct Record {
    marks: Vec<Mark>,
    time: Stamp,
}

/// When the device came to a record, once it has.
pub(crate) type Stamp = Arc<Mutex<Option<Instant>>>;

impl Event {
    pub(crate) fn new(device: usize, flags: u32) -> Self {
        Self { device, flags, record: Mutex::default() }
    }

    pub(crate) fn set(&self, marks: Vec<Mark>, time: Stamp) {
        *lock(&self.record) = Record { marks, time };
    }

    /// What it has captured by now: a later record does not change what somebody waits for.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        lock(&self.record).marks.clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.marks().iter().all(Mark::is_done)
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }

    /// When the device came to it.
    pub(crate) fn time(&self) -> Option<Instant> {
        let time = lock(&self.record).time.clone();
        *lock(&time)
    }
}
