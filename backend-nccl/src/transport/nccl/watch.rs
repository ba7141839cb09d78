//! The watchdog of a communicator: it looks when the thread that owns it cannot, because it is inside NCCL or waits for
//! the computation.

use std::{sync::Arc, time::Duration};

use super::{
    gpu::log_refusal,
    shared::{Shared, Trouble},
};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the owner may be in one call before somebody else looks for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The watchdog's thread.
pub(super) fn watch(shared: Arc<Shared>) {
    log_refusal(shared.gpu.bind());
    let mut trouble = Trouble::default();
    while shared.progress.wait_to_watch(PAUSE) {
        if !shared.comm.is_stuck(PATIENCE) {
            continue;
        }
        if let Some(failure) = trouble.look(&shared) {
            shared.fail(failure);
            shared.comm.abort();
        } else if shared.progress.lingers() {
            shared.comm.abort();
        }
    }
}
