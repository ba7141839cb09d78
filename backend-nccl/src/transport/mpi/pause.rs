//! The wait between two tests of MPI, which has no call that sleeps until something has happened.

use std::time::{Duration, Instant};

use crate::transport::Patience;

/// How long a rank that somebody waits for keeps its core.
const SPIN: Duration = Duration::from_micros(20);
/// How long the core is offered to others before the thread sleeps: longer than a chunk takes to be copied.
const YIELD: Duration = Duration::from_micros(300);
const FIRST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep: what a wait for a late rank may add to its latency.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A wait that grows while nothing happens.
#[derive(Debug)]
pub(super) struct Pause {
    spin: Duration,
    since: Option<Instant>,
    sleep: Duration,
}

impl Pause {
    pub(super) fn new(patience: Patience) -> Self {
        let spin = if patience == Patience::Waiting { SPIN } else { Duration::ZERO };
        Self { spin, since: None, sleep: FIRST_SLEEP }
    }

    /// Something has happened.
    pub(super) fn reset(&mut self) {
        self.since = None;
        self.sleep = FIRST_SLEEP;
    }

    pub(super) fn wait(&mut self) {
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        if idle < self.spin {
            std::hint::spin_loop();
        } else if idle < YIELD {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep);
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
        }
    }
}
