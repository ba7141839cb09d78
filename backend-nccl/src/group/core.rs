//! What runs a collective: its turn, its deadline, its transport.

use std::time::Duration;

use super::{
    options::GroupOptions,
    order::{Operation, Order, Ticket},
};
use crate::{
    Error, Result,
    deadline::Deadline,
    failure::Failure,
    transport::{Call, Collective, Patience, Signature, Transport},
};

/// What a collective needs. The communication thread holds it while it has work.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) options: GroupOptions,
    pub(super) order: Order,
    pub(super) transport: Box<dyn Transport>,
}

impl Core {
    /// Runs one operation on this thread, in its turn. `operation` makes it from its numbers.
    pub(super) fn run<'a>(
        &self,
        operation: Operation,
        collective: impl FnOnce(Ticket) -> Collective<'a>,
    ) -> Result<()> {
        let ticket = self.order.take(operation, |ticket| ticket);
        let _turn = self.order.wait(ticket);
        self.execute(ticket.sequence, collective(ticket), Patience::Waiting)
    }

    /// Runs one operation whose turn it is.
    pub(super) fn execute(
        &self,
        sequence: u64,
        collective: Collective<'_>,
        patience: Patience,
    ) -> Result<()> {
        let _abort = AbortOnPanic(self);
        let deadline = Deadline::after(self.options.timeout);
        let signature = collective.signature(sequence);
        let call = Call { sequence, deadline, check: self.options.check, patience, part_of: None };
        self.transport
            .execute(call, collective)
            .map_err(|failure| failed(self.rank, self.world_size, signature, deadline.elapsed(), failure))
    }

    pub(super) fn abort(&self, reason: &str) {
        self.transport.abort(Failure::Aborted { rank: self.rank, reason: reason.to_owned() });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.transport.close();
    }
}

/// The other ranks wait for a collective that a panic leaves half done.
pub(super) struct AbortOnPanic<'a>(pub(super) &'a Core);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("it panicked in a collective, read its log for the message");
        }
    }
}

fn failed(
    rank: usize,
    world_size: usize,
    signature: Signature,
    elapsed: Duration,
    failure: Failure,
) -> Error {
    Error::Collective { op: signature.kind, sequence: signature.sequence, rank, world_size, elapsed, failure }
}
