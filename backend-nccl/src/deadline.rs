//! The moment at which a wait ends, whatever happens.

use std::time::{Duration, Instant};

/// A time limit that starts when it is made and is handed down through every wait of one operation.
///
/// Passing the deadline rather than a duration keeps the sum of several waits within one limit.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
    /// What is allowed beyond the limit.
    grace: Duration,
}

impl Deadline {
    /// A deadline `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, grace: Duration::ZERO }
    }

    /// The same limit, that passes later: for one who waits for another that is under the limit itself.
    pub(crate) fn later(self, by: Duration) -> Self {
        Self { grace: self.grace.saturating_add(by), ..self }
    }

    /// The limit it was made with.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// When it was made.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Time since it was made.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Time that is left, zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.limit.saturating_add(self.grace).saturating_sub(self.elapsed())
    }

    /// Whether it has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time left, at most `cap` and at least one millisecond: a socket takes a zero timeout for "wait for ever".
    pub(crate) fn remaining_at_most(&self, cap: Duration) -> Duration {
        self.remaining().min(cap).max(Duration::from_millis(1))
    }

    /// Milliseconds for `poll(2)`, rounded up so that a wait never spins through its last fraction.
    pub(crate) fn poll_milliseconds(&self) -> i32 {
        let milliseconds = self.remaining().as_nanos().div_ceil(1_000_000);
        i32::try_from(milliseconds).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_deadline_leaves_nothing_and_never_underflows() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(deadline.expired());
        assert_eq!(deadline.remaining(), Duration::ZERO);
        assert_eq!(deadline.poll_milliseconds(), 0);
        assert_eq!(deadline.remaining_at_most(Duration::from_secs(1)), Duration::from_millis(1));
    }

    #[test]
    fn a_later_deadline_keeps_its_limit() {
        let deadline = Deadline::after(Duration::ZERO).later(Duration::from_secs(60));
        assert!(!deadline.expired() && deadline.remaining() > Duration::from_secs(50));
        assert_eq!(deadline.limit(), Duration::ZERO);
    }

    #[test]
    fn a_deadline_beyond_what_poll_can_express_is_clamped() {
        let deadline = Deadline::after(Duration::from_secs(u32::MAX.into()));
        assert_eq!(deadline.poll_milliseconds(), i32::MAX);
        assert!(!deadline.expired());
    }
}
