//! A bounded queue between threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Items in the order in which they came, at most `capacity` of them.
///
/// Unlike the channels of the standard library it can be read by several threads, and closed from outside.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let state = State { items: VecDeque::new(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), capacity: capacity.max(1) }
    }

    /// Adds an item, or gives it back where the queue is full or closed.
    pub(super) fn try_push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed || state.items.len() >= self.capacity {
            return Err(item);
        }
        state.items.push_back(item);
        self.changed.notify_all();
        Ok(())
    }

    /// Adds an item as soon as there is room, or gives it back where the queue is closed.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let full = |state: &mut State<T>| !state.closed && state.items.len() >= self.capacity;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes the first item as soon as there is one; none once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<T> {
        let empty = |state: &mut State<T>| !state.closed && state.items.is_empty();
        let mut state = self.changed.wait_while(self.lock(), empty).unwrap_or_else(PoisonError::into_inner);
        self.take(&mut state)
    }

    /// Takes the first item if there is one, or if one comes before the deadline while there is `hope` for it; see
    /// [`wake`](Self::wake).
    pub(super) fn pop_until(&self, deadline: Instant, hope: impl Fn() -> bool) -> Option<T> {
        let mut state = self.lock();
        while state.items.is_empty() && !state.closed && hope() {
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        self.take(&mut state)
    }

    /// Lets those who wait see whether there still is hope.
    pub(super) fn wake(&self) {
        // Nobody may be between looking and waiting.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Ends all waiting; what is in the queue can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        let item = state.items.pop_front();
        self.changed.notify_all();
        item
    }

    /// No holder of the lock can leave the state half-changed.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_queue_refuses_and_keeps_the_order() {
        let queue = Queue::new(2);
        assert_eq!((queue.try_push(1), queue.try_push(2), queue.try_push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop_until(Instant::now(), || true)),
            (Some(1), Some(2), None)
        );
    }

    #[test]
    fn a_wait_ends_with_the_hope() {
        let (queue, hope) = (Queue::<u8>::new(1), AtomicBool::new(true));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let began = Instant::now();
                let popped = queue.pop_until(began + Duration::from_secs(60), || hope.load(Ordering::SeqCst));
                (popped, began.elapsed())
            });
            hope.store(false, Ordering::SeqCst);
            queue.wake();
            let (popped, waited) = waits.join().unwrap();
            assert!(popped.is_none() && waited < Duration::from_secs(30), "{waited:?}");
        });
    }

    #[test]
    fn a_push_waits_for_room_and_closing_ends_every_wait() {
        let queue = Queue::new(1);
        queue.push(1).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| queue.push(2));
            assert_eq!(queue.pop(), Some(1));
            assert_eq!(queue.pop_until(Instant::now() + Duration::from_secs(20), || true), Some(2));
            assert_eq!(second.join().unwrap(), Ok(()));
            queue.push(3).unwrap();
            let fourth = scope.spawn(|| queue.push(4));
            std::thread::sleep(Duration::from_millis(20));
            queue.close();
            assert_eq!(fourth.join().unwrap(), Err(4));
            assert_eq!((queue.pop(), queue.pop()), (Some(3), None));
        });
    }
}
