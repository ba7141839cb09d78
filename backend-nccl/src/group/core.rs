//! What runs a collective: its turn, its deadline, its transport.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    inside::GroupId,
    options::GroupOptions,
    order::{Operation, Order, Ticket},
    recorder::Messages,
    watchdog::Watchdog,
};
use crate::{
    Error, Result,
    deadline::Deadline,
    failure::Failure,
    site::CallSite,
    transport::{Call, Collective, Patience, Signature, Transport, nccl::Slots},
};

/// What a collective needs. The communication thread holds it while it has work.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) options: GroupOptions,
    pub(super) order: Order,
    pub(super) transport: Arc<dyn Transport>,
    /// What carries its tensors on GPUs.
    pub(super) devices: Slots,
    pub(super) watchdog: Arc<Watchdog>,
}

impl Core {
    /// Runs one operation on this thread, in its turn. `operation` makes it from its numbers.
    #[track_caller]
    pub(super) fn run<'a>(
        &self,
        operation: Operation,
        collective: impl FnOnce(Ticket) -> Collective<'a>,
    ) -> Result<()> {
        GroupId::of(self).must_be_outside("a collective or a message")?;
        let site = CallSite::here();
        let (ticket, collective) = self.order.take(operation, |ticket| {
            let collective = collective(ticket);
            self.note(ticket, operation, collective.signature(ticket.sequence), site);
            (ticket, collective)
        });
        let _turn = self.order.wait(ticket);
        self.execute(ticket, collective, Patience::Waiting)
    }

    /// Notes in the record that an operation has been called.
    pub(super) fn note(&self, ticket: Ticket, operation: Operation, signature: Signature, site: CallSite) {
        let messages = match operation {
            Operation::Collectives(_) => Messages::default(),
            Operation::Messages { to, from } => Messages {
                to: to.map(|rank| (rank, ticket.sent)),
                from: from.map(|rank| (rank, ticket.received)),
            },
        };
        // The number stays that of the last collective, by which ranks tell who is behind; the sender is the message's.
        let root = match operation {
            Operation::Messages { to: Some(_), .. } => self.rank as u32,
            Operation::Messages { from: Some(from), .. } => from as u32,
            _ => signature.root,
        };
        let signature = Signature { sequence: ticket.sequence, root, ..signature };
        self.watchdog.recorder.enqueue(ticket.turn, signature, messages, site, Instant::now());
    }

    /// Runs one operation whose turn it is.
    pub(super) fn execute(
        &self,
        ticket: Ticket,
        collective: Collective<'_>,
        patience: Patience,
    ) -> Result<()> {
        let _abort = AbortOnPanic(self);
        let deadline = Deadline::after(self.options.timeout);
        let recorder = &self.watchdog.recorder;
        recorder.start(ticket.turn, deadline.start());
        let sequence = ticket.sequence;
        let signature = match &collective {
            Collective::Exchange { send: Some(message), dtype, .. } => message.signature(*dtype, self.rank),
            Collective::Exchange { receive: Some(message), dtype, .. } => message.signature(*dtype),
            collective => collective.signature(sequence),
        };
        let (check, checksums) = (self.options.check, self.options.checksums);
        let call = Call { sequence, deadline, check, checksums, patience, part_of: None };
        let outcome = self.transport.execute(call, collective);
        recorder.end(ticket.turn, Instant::now(), outcome.is_err());
        outcome.map_err(|failure| {
            let cause = failure.clone();
            let error = self.failed(signature, deadline.elapsed(), failure);
            self.watchdog.write(&error.to_string(), &cause);
            error
        })
    }

    pub(super) fn failed(&self, signature: Signature, elapsed: Duration, failure: Failure) -> Error {
        let (rank, world_size, group) = (self.rank, self.world_size, self.watchdog.name.clone());
        let Signature { kind: op, sequence, .. } = signature;
        Error::Collective { op, sequence, rank, world_size, group, elapsed, failure: Box::new(failure) }
    }

    pub(super) fn abort(&self, reason: &str) {
        let failure = Failure::Aborted { rank: self.rank, reason: reason.to_owned() };
        self.transport.abort(failure.clone());
        self.watchdog.write(&failure.to_string(), &failure);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The others may wait for this rank on their GPUs, and would do so until they see it leave.
        if std::thread::panicking() && self.devices.is_used() {
            self.abort("it panicked, read its log for the message");
        }
        // Before the goodbye, which says that this rank has done its part of everything.
        self.devices.close();
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
