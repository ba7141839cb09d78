//! Signals that ask a training to save itself and end.
//!
//! The first one is only noted; the training loop looks for it after each step. A second one, a second or more later,
//! ends the process as it would without this module: batch systems send a signal to the launcher and to the ranks, and
//! the launcher passes it on, so that the same request may come twice.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::low_level::{emulate_default_handler, register};

use crate::error::{RecipeError, Result};

/// What batch systems send before they end a job: SIGTERM is the usual one, SIGUSR1 that of `sbatch --signal=USR1@120`.
const SIGNALS: [i32; 2] = [SIGTERM, SIGUSR1];

/// A signal before this has passed is the first one once more.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// The signal that came first, 0 for none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// When it came, in milliseconds.
static CAME_AT: AtomicU64 = AtomicU64::new(0);

/// From now on the signals are noted.
///
/// # Errors
/// Where the system refuses a handler.
pub(crate) fn watch() -> Result<()> {
    let began = Instant::now();
    for signal in SIGNALS {
        let note = move || {
            let now = began.elapsed().as_millis() as u64;
            if SIGNAL.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                CAME_AT.store(now, Ordering::Release);
            } else if is_second(CAME_AT.load(Ordering::Acquire), now) {
                // Nothing can be done about a failure in here.
                let _ = emulate_default_handler(signal);
            }
        };
        // SAFETY: `note` reads a clock, uses atomics and makes the system calls that end the process, all of which are
        // allowed in a handler.
        unsafe { register(signal, note) }
            .map_err(|error| RecipeError::failure("cannot handle signals", error.to_string(), "report it"))?;
    }
    Ok(())
}

/// Whether a signal has come.
pub(crate) fn is_requested() -> bool {
    SIGNAL.load(Ordering::Acquire) != 0
}

fn is_second(first_ms: u64, now_ms: u64) -> bool {
    u128::from(now_ms.saturating_sub(first_ms)) >= SECOND_SIGNAL.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_may_come_twice_within_a_second() {
        let table = [(500, 500, false), (500, 1499, false), (500, 1500, true), (500, 400, false)];
        for (first, now, expected) in table {
            assert_eq!(is_second(first, now), expected, "{first} ms, {now} ms");
        }
    }
}
