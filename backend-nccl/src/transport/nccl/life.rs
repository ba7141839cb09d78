//! The life of a communicator on the thread that owns it: from its making to its end.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use super::{
    api::UniqueId,
    find::Found,
    leave,
    refused::Refused,
    shared::{Shared, Trouble},
    stream::Stream,
    thread::{Order, Owner},
};
use crate::{deadline::Deadline, device_error::DeviceError, failure::Failure};

const PAUSE: Duration = Duration::from_millis(1);

/// Why a rank has no communicator.
pub(super) enum Unmade {
    /// Its own trouble.
    Refused(Box<(DeviceError, Failure)>),
    /// That of the group.
    Failed(Failure),
}

impl Unmade {
    /// The same, in words that tell what to do where that is known.
    pub(super) fn explained(self, found: &Found) -> Self {
        match self {
            Self::Refused(refused) => {
                let (error, failure) = *refused;
                Self::Refused(Box::new((found.explain(error), failure)))
            }
            failed => failed,
        }
    }
}

/// The life of the owner's thread.
pub(super) fn live(
    shared: &Arc<Shared>,
    id: UniqueId,
    deadline: Deadline,
    orders: mpsc::Receiver<Order>,
    report: &mpsc::Sender<Result<(), Unmade>>,
) {
    let _closed = Closed(shared);
    let stream = match make(shared, id, deadline) {
        Ok(stream) => stream,
        Err(unmade) => {
            shared.comm.abort();
            // Without a receiver the one who asked has given up.
            let _ = report.send(Err(unmade));
            return;
        }
    };
    let _ = report.send(Ok(()));
    let mut owner = Owner::new(shared.clone(), stream, orders);
    owner.serve();
    leave::leave(shared);
    drop(owner);
}

/// Says at the end of the thread, whatever it comes from, that the communicator has been left.
struct Closed<'a>(&'a Shared);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.progress.closed();
    }
}

/// Makes the communicator, and the stream for it.
fn make(shared: &Shared, id: UniqueId, deadline: Deadline) -> Result<Stream, Unmade> {
    let refused = |refused: Refused| match refused.clone().failure(shared.rank) {
        Some(failure) => Unmade::Refused(Box::new((refused.device_error(shared.gpu.ordinal), failure))),
        None => Unmade::Failed(stalled(deadline)),
    };
    shared.gpu.bind().map_err(refused)?;
    let stream = Stream::new(&shared.gpu).map_err(refused)?;
    shared.comm.begin(shared.world_size, id, shared.rank).map_err(refused)?;
    let mut trouble = Trouble::default();
    while !shared.comm.is_settled("make its communicator").map_err(refused)? {
        if let Some(failure) = trouble.look(shared) {
            return Err(Unmade::Failed(failure));
        }
        if deadline.expired() {
            return Err(Unmade::Failed(stalled(deadline)));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(stream)
}

/// The end of a set-up that has no end.
pub(super) fn stalled(deadline: Deadline) -> Failure {
    Failure::Stalled { operation: "the set-up of a communicator".into(), limit: deadline.limit() }
}
