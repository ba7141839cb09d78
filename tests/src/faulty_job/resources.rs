//! What a process holds: open files and threads.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Threads that nobody waits for end under their own deadline; sockets close with them.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(1);

/// Counts of what a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Open files, sockets among them.
    pub files: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of shared memory that have a name, or had one.
    pub shared_mappings: usize,
}

impl Resources {
    /// What this process holds now.
    pub fn now() -> Self {
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = |line: &&str| line.contains("/dev/shm/") || line.contains("/memfd:");
        Self {
            files: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            shared_mappings: maps.lines().filter(shared).count(),
        }
    }

    /// What it holds once that is no more than `before`, or after a patient wait.
    pub(super) fn settled(before: &Self) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now == *before || start.elapsed() > PATIENCE {
                return now;
            }
            std::thread::sleep(POLL);
        }
    }
}
