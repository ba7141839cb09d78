//! What moves the bytes of a group.

use std::fmt;

use super::{Buffer, Call, Collective, control::Control, members::Members};
use crate::failure::Failure;

/// Moves the bytes of one collective at a time. Whether its peers are still there it learns from [`Control`].
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// The name in messages and records: `tcp`, …
    fn name(&self) -> &'static str;

    /// Runs one collective between `among` to its end, with this rank's part complete when it returns. Roots and peers
    /// are places of `among`.
    ///
    /// # Errors
    ///
    /// Why it cannot end. The caller ends the group then.
    fn run(
        &self,
        control: &Control,
        among: &Members,
        call: Call,
        collective: Collective<'_>,
    ) -> Result<(), Failure>;

    /// Memory that this engine moves without a copy, zeroed; `None` where ordinary memory does as well.
    fn allocate(&self, _len_bytes: usize) -> Option<Buffer> {
        None
    }

    /// Ends the waits of a call that is under way and of all later ones: the group has ended. Never blocks.
    fn shutdown(&self);
}
