//! Threads that compute one batch together.
//!
//! Every thread runs the whole program, each its own part of every step, and they wait for each other between steps. They
//! spin while a batch is computed, where a step takes microseconds, and sleep between batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Turns of an empty loop before a thread lets others run, who may be whom it waits for.
const SPINS: usize = 20_000;

/// What a team runs: its arguments are the number of a thread, and where to wait for the others.
type Work<'a> = dyn Fn(usize, &Barrier) + Sync + 'a;

/// A number of threads, one of which is the caller's.
pub(super) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    barrier: Barrier,
    /// Workers that have left the work of this turn.
    left: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Counts batches.
    turn: usize,
    work: Option<&'static Work<'static>>,
    stop: bool,
}

/// Where the threads of a team wait for each other.
pub(super) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    phase: AtomicUsize,
    /// Set by a thread that will not arrive any more.
    broken: AtomicBool,
}

impl Barrier {
    /// Waits until every thread is here; whether all of them still work.
    pub(super) fn wait(&self) -> bool {
        if self.threads == 1 {
            return true;
        }
        let phase = self.phase.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.phase.store(phase.wrapping_add(1), Ordering::Release);
            return !self.broken.load(Ordering::Relaxed);
        }
        let mut spins = 0;
        while self.phase.load(Ordering::Acquire) == phase {
            if self.broken.load(Ordering::Relaxed) {
                return false;
            }
            pause(&mut spins);
        }
        true
    }
}

/// Waits a little, and lets others run once it has been long.
fn pause(spins: &mut usize) {
    *spins += 1;
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

impl Team {
    /// Starts all but one of the threads; none for one. The caller's is always there.
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let (arrived, phase) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let barrier = Barrier { threads, arrived, phase, broken: AtomicBool::new(false) };
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            barrier,
            left: AtomicUsize::new(0),
        });
        let mut team = Self { shared, workers: Vec::new() };
        for thread in 1..threads {
            let shared = Arc::clone(&team.shared);
            let builder = std::thread::Builder::new().name(format!("inference-{thread}"));
            team.workers.push(builder.spawn(move || shared.work(thread))?);
        }
        Ok(team)
    }

    /// The number of threads, the caller's with them.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` on every thread; whether all of them finished it.
    pub(super) fn run(&mut self, work: &Work<'_>) -> bool {
        if self.workers.is_empty() {
            return self.shared.take_part(0, work);
        }
        if self.shared.barrier.broken.load(Ordering::Acquire) {
            return false;
        }
        // SAFETY: it differs in the lifetime alone. Below no worker is left that uses it.
        let forever = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        self.publish(Some(forever));
        self.shared.take_part(0, forever);
        let mut spins = 0;
        while self.shared.left.load(Ordering::Acquire) < self.workers.len() {
            pause(&mut spins);
        }
        self.shared.left.store(0, Ordering::Relaxed);
        self.shared.lock().work = None;
        !self.shared.barrier.broken.load(Ordering::Acquire)
    }

    fn publish(&self, work: Option<&'static Work<'static>>) {
        let mut state = self.shared.lock();
        state.work = work;
        state.turn = state.turn.wrapping_add(1);
        state.stop = work.is_none();
        drop(state);
        self.shared.wake.notify_all();
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            self.publish(None);
        }
        for worker in self.workers.drain(..) {
            // A worker that panicked has broken the barrier, which was told to the caller then.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, thread: usize) {
        let mut turn = 0;
        loop {
            let mut state = self.lock();
            while state.turn == turn {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            turn = state.turn;
            let work = state.work.filter(|_| !state.stop);
            drop(state);
            let Some(work) = work else { return };
            let done = self.take_part(thread, work);
            self.left.fetch_add(1, Ordering::AcqRel);
            if !done {
                return;
            }
        }
    }

    /// Does a thread's part; whether it finished. One that panics would be waited for in vain, which it says.
    fn take_part(&self, thread: usize, work: &Work<'_>) -> bool {
        let done = catch_unwind(AssertUnwindSafe(|| work(thread, &self.barrier))).is_ok();
        if !done {
            self.barrier.broken.store(true, Ordering::Release);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_takes_part_in_every_turn() {
        for threads in 1..5 {
            let mut team = Team::new(threads).expect("threads can be started");
            let parts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..100 {
                assert!(team.run(&|thread, barrier| {
                    parts[thread].fetch_add(1, Ordering::Relaxed);
                    assert!(barrier.wait());
                    // All have counted this turn before any counts the next.
                    let turn = parts[thread].load(Ordering::Relaxed);
                    assert!(parts.iter().all(|part| part.load(Ordering::Relaxed) == turn));
                    assert!(barrier.wait());
                }));
            }
            assert!(parts.iter().all(|part| part.load(Ordering::Relaxed) == 100));
        }
    }

    #[test]
    fn one_thread_starts_no_other_and_none_is_the_callers() {
        for threads in [0, 1] {
            let mut team = Team::new(threads).expect("no thread is needed");
            assert_eq!((team.threads(), team.workers.len()), (1, 0));
            assert!(team.run(&|thread, barrier| assert!(thread == 0 && barrier.wait())));
        }
    }

    #[test]
    fn a_thread_that_panics_ends_the_turn_of_all() {
        for guilty in 0..3 {
            let mut team = Team::new(3).expect("threads can be started");
            let finished = team.run(&|thread, barrier| {
                assert!(thread != guilty, "this panic is part of the test");
                assert!(!barrier.wait());
            });
            assert!(!finished, "thread {guilty} panicked");
            assert!(!team.run(&|_, _| {}), "the team is not used again");
        }
    }
}
