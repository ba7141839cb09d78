//! Warnings of something that all ranks find.

use burn_nccl::Environment;

/// Says something once, whatever the number of ranks.
pub(crate) fn warn_once(text: &str) {
    if Environment::read().ok().flatten().is_none_or(|environment| environment.rank == 0) {
        log::warn!("{text}");
    }
}
