//! The order of collectives: a number at the call, a turn at the execution.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::transport::{Collective, DType, Incoming, Outgoing};

/// A ticket lock that numbers what it orders.
///
/// The ticket is taken when an operation is called, so calls of one thread run in program order on every rank, whether
/// they run on that thread or on the communication thread. Turns are this rank's own; the numbers of collectives and
/// messages are the same on every rank that takes part.
///
/// The wait for a turn has no deadline, since giving up a place would put the calls of the ranks out of step. It ends
/// because every collective and message is under one, with two exceptions: a job computes as long as it likes, and one
/// that waited for a turn behind its own would never end, which [`GroupId`](super::inside::GroupId) refuses.
#[derive(Debug)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    next: u64,
    serving: u64,
    /// Collectives that have been called.
    collectives: u64,
    /// Messages to and from each rank that have been called.
    sent: BTreeMap<usize, u64>,
    received: BTreeMap<usize, u64>,
}

/// The place of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) turn: u64,
    turns: u64,
    /// The number of the collective, from 1; of the last one before, for messages.
    pub(super) sequence: u64,
    /// The numbers of the messages, from 1.
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Ticket {
    /// One of the places of a ticket for several collectives, from 0.
    pub(super) fn place(&self, index: u64) -> Self {
        Self { turn: self.turn + index, sequence: self.sequence + index, ..*self }
    }

    /// The messages of this ticket: a buffer and the rank it goes to, a buffer and the rank it comes from.
    pub(super) fn exchange<'a>(
        &self,
        send: Option<(&'a [u8], usize)>,
        receive: Option<(&'a mut [u8], usize)>,
        dtype: DType,
    ) -> Collective<'a> {
        let send = send.map(|(buffer, to)| Outgoing { buffer, to, number: self.sent });
        let receive = receive.map(|(buffer, from)| Incoming { buffer, from, number: self.received });
        Collective::Exchange { send, receive, dtype }
    }
}

/// What takes a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// So many collectives, one after the other.
    Collectives(u64),
    /// A message to and one from these ranks.
    Messages { to: Option<usize>, from: Option<usize> },
}

/// The turn of one ticket; the next one's when it is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    order: &'a Order,
    count: u64,
}

impl Order {
    pub(super) fn new() -> Self {
        let state =
            State { next: 1, serving: 1, collectives: 0, sent: BTreeMap::new(), received: BTreeMap::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Takes a ticket. `enqueue` runs before anyone else can take one.
    pub(super) fn take<T>(&self, operation: Operation, enqueue: impl FnOnce(Ticket) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.take(operation);
        enqueue(ticket)
    }

    /// Waits for the turn of a ticket.
    pub(super) fn wait(&self, ticket: Ticket) -> Turn<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |state| state.serving != ticket.turn);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Turn { order: self, count: ticket.turns }
    }
}

impl State {
    fn take(&mut self, operation: Operation) -> Ticket {
        let mut ticket =
            Ticket { turn: self.next, turns: 1, sequence: self.collectives, sent: 0, received: 0 };
        let count = |counts: &mut BTreeMap<usize, u64>, rank| {
            let count = counts.entry(rank).or_default();
            *count += 1;
            *count
        };
        match operation {
            Operation::Collectives(collectives) => {
                ticket.turns = collectives;
                ticket.sequence += 1;
                self.collectives += collectives;
            }
            Operation::Messages { to, from } => {
                ticket.sent = to.map_or(0, |rank| count(&mut self.sent, rank));
                ticket.received = from.map_or(0, |rank| count(&mut self.received, rank));
            }
        }
        self.next += ticket.turns;
        ticket
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.order.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.serving += self.count;
        drop(state);
        self.order.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_tickets_whatever_the_order_of_arrival() {
        let order = Order::new();
        let seen = Mutex::new(Vec::new());
        let take = |operation| order.take(operation, |ticket| ticket);
        let tickets = [1, 2, 1].map(|count| take(Operation::Collectives(count)));
        assert_eq!(tickets.map(|ticket| ticket.sequence), [1, 2, 4]);
        std::thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (order, seen) = (&order, &seen);
                scope.spawn(move || {
                    let _turn = order.wait(ticket);
                    seen.lock().unwrap().push(ticket.sequence);
                });
            }
        });
        assert_eq!(*seen.lock().unwrap(), [1, 2, 4]);
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let order = Order::new();
        let [first, second] = [(); 2].map(|()| order.take(Operation::Collectives(1), |ticket| ticket));
        let panicked = std::thread::scope(|scope| {
            let panicking = scope.spawn(|| {
                let _turn = order.wait(first);
                panic!("expected by the test");
            });
            panicking.join().is_err()
        });
        assert!(panicked);
        drop(order.wait(second));
    }

    #[test]
    fn messages_are_counted_for_each_rank_and_direction_and_leave_the_collectives_numbers_alone() {
        let order = Order::new();
        let message = |to, from| order.take(Operation::Messages { to, from }, |ticket| ticket);
        let numbers = |ticket: Ticket| (ticket.sent, ticket.received);
        assert_eq!(numbers(message(Some(1), None)), (1, 0));
        assert_eq!(numbers(message(Some(2), Some(1))), (1, 1));
        assert_eq!(numbers(message(Some(1), Some(1))), (2, 2));
        let next = order.take(Operation::Collectives(1), |ticket| ticket);
        assert_eq!((next.turn, next.sequence), (4, 1));
    }
}
