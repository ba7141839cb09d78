//! The order of collectives: a number at the call, a turn at the execution.

use std::sync::{Condvar, Mutex, PoisonError};

/// A ticket lock. Tickets are the sequence numbers of the group, from 1.
///
/// The number is taken when a collective is called, so calls of one thread run in program order on every rank,
/// whether they run on that thread or on the communication thread. Whoever has the turn is under a deadline, so the
/// wait for it ends.
#[derive(Debug)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    next: u64,
    serving: u64,
}

/// The turn of one ticket; the next one's when it is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    order: &'a Order,
    count: u64,
}

impl Order {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { next: 1, serving: 1 }), changed: Condvar::new() }
    }

    /// Takes `count` successive tickets and returns the first. `enqueue` runs before anyone else can take one.
    pub(super) fn take<T>(&self, count: u64, enqueue: impl FnOnce(u64) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.next;
        state.next += count;
        enqueue(ticket)
    }

    /// Waits for the turn of `count` tickets from `ticket`.
    pub(super) fn wait(&self, ticket: u64, count: u64) -> Turn<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |state| state.serving != ticket);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Turn { order: self, count }
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
        let tickets = [order.take(1, |t| (t, 1)), order.take(2, |t| (t, 2)), order.take(1, |t| (t, 1))];
        assert_eq!(tickets, [(1, 1), (2, 2), (4, 1)]);
        std::thread::scope(|scope| {
            for (ticket, count) in tickets.into_iter().rev() {
                let (order, seen) = (&order, &seen);
                scope.spawn(move || {
                    let _turn = order.wait(ticket, count);
                    seen.lock().unwrap().push(ticket);
                });
            }
        });
        assert_eq!(*seen.lock().unwrap(), [1, 2, 4]);
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let order = Order::new();
        let (first, second) = (order.take(1, |t| t), order.take(1, |t| t));
        let panicked = std::thread::scope(|scope| {
            let panicking = scope.spawn(|| {
                let _turn = order.wait(first, 1);
                panic!("expected by the test");
            });
            panicking.join().is_err()
        });
        assert!(panicked);
        drop(order.wait(second, 1));
    }
}
