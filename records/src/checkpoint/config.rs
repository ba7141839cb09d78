//! What a [`Checkpointer`](super::Checkpointer) keeps, and what it does when it cannot write.

use std::time::Duration;

/// Which checkpoints are kept, and what happens when one cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointConfig {
    /// How many of the newest are kept; the newest always is, so 0 keeps as many as 1.
    pub keep_last: usize,
    /// How many of the best by [`metric`](super::TrainingState::metric) are kept besides.
    pub keep_best: usize,
    /// Which metric is better.
    pub best: Best,
    /// What happens when a checkpoint cannot be written.
    pub on_failure: OnFailure,
    /// The longest that writing one checkpoint may take.
    pub write_timeout: Duration,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            keep_last: 3,
            keep_best: 1,
            best: Best::Highest,
            on_failure: OnFailure::Stop,
            write_timeout: Duration::from_secs(30 * 60),
        }
    }
}

/// Which metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// The larger, as of an accuracy.
    Highest,
    /// The smaller, as of a loss.
    Lowest,
}

/// What happens when a checkpoint cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The next call returns the error, on every rank.
    Stop,
    /// Rank 0 logs the error and training goes on; the older checkpoints stay as they are.
    Continue,
}
