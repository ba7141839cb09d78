//! The flight recorder: the last thousand operations of a group, kept in memory at almost no cost.
//!
//! Source: PyTorch's flight recorder (`TORCH_NCCL_TRACE_BUFFER_SIZE`), which is off unless asked for. Here an operation
//! costs less than a tenth of a microsecond and no allocation, so it is always on: nobody asks before the failure.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use super::record::{Operation, State};
use crate::{
    site::CallSite,
    transport::{OpKind, Signature},
};

/// How many operations are kept.
pub(crate) const CAPACITY: usize = 1000;
/// Among how many of the newest operations the end of one looks for others that run.
const MOST_IN_FLIGHT: u64 = 64;

/// What a group has done and is doing.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// One moment on both clocks: the one that times are told in, and the one that never jumps.
    epoch: SystemTime,
    start: Instant,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    /// Operation `n` in the order in which they were noted is at `n % CAPACITY`. Turns would leave holes: reserved places
    /// that nobody uses.
    entries: Box<[Option<Entry>]>,
    /// How many were noted.
    total: u64,
    /// The turn of the oldest operation that runs, and of the last that ended well. One runs at a time, but for those on
    /// devices, which overtake none.
    running: Option<u64>,
    finished: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    turn: u64,
    signature: Signature,
    messages: Messages,
    site: CallSite,
    enqueued: Instant,
    started: Option<Instant>,
    ended: Option<Instant>,
    failed: bool,
}

/// The messages of an operation, each by the other rank and its number among those between the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Messages {
    pub(crate) to: Option<(usize, u64)>,
    pub(crate) from: Option<(usize, u64)>,
}

/// Where a rank stands in the order of operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Position {
    /// The last operation that ended well.
    pub(crate) finished: Option<Operation>,
    /// The operation that runs, the oldest of several.
    pub(crate) pending: Option<Operation>,
    /// The newest of several that run, as on a GPU.
    pub(crate) newest: Option<Operation>,
    /// How many wait for their turn.
    pub(crate) queued: u64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let ring = Ring {
            entries: vec![None; CAPACITY].into_boxed_slice(),
            total: 0,
            running: None,
            finished: None,
        };
        Self { epoch: SystemTime::now(), start: Instant::now(), ring: Mutex::new(ring) }
    }

    /// Notes an operation that has its turn in the order and waits for it.
    pub(crate) fn enqueue(
        &self,
        turn: u64,
        signature: Signature,
        messages: Messages,
        site: CallSite,
        at: Instant,
    ) {
        let (started, ended, failed) = (None, None, false);
        let entry = Entry { turn, signature, messages, site, enqueued: at, started, ended, failed };
        let mut ring = self.lock();
        let at = (ring.total % CAPACITY as u64) as usize;
        ring.entries[at] = Some(entry);
        ring.total += 1;
    }

    /// Notes that it is the turn of an operation.
    pub(crate) fn start(&self, turn: u64, at: Instant) {
        let mut ring = self.lock();
        if let Some(entry) = ring.entry(turn) {
            entry.started = Some(at);
        }
        ring.running = Some(ring.running.map_or(turn, |oldest| oldest.min(turn)));
    }

    /// Notes the end of an operation.
    pub(crate) fn end(&self, turn: u64, at: Instant, failed: bool) {
        let mut ring = self.lock();
        if !failed {
            ring.finished = ring.finished.max(Some(turn));
        }
        if let Some(entry) = ring.entry(turn) {
            entry.ended = Some(at);
            entry.failed = failed;
        }
        if ring.running == Some(turn) {
            ring.running = ring.running_turns().min();
        }
    }

    /// The operations that are kept, oldest first, and how many there were in all.
    pub(crate) fn operations(&self) -> (Vec<Operation>, u64) {
        let ring = self.lock();
        let (mut entries, total): (Vec<Entry>, _) =
            (ring.entries.iter().flatten().copied().collect(), ring.total);
        drop(ring);
        // A job notes what it runs when it runs, behind operations that come after it.
        entries.sort_unstable_by_key(|entry| entry.turn);
        (entries.iter().map(|entry| self.operation(entry)).collect(), total)
    }

    /// The operation that another rank knows by this signature, if it is still kept. That of a message is its sender's
    /// number for it; `asker` is its receiver then.
    pub(crate) fn find(&self, signature: Signature, asker: usize) -> Option<Operation> {
        let ring = self.lock();
        let is_meant = |entry: &&Entry| match signature.kind {
            OpKind::Message => entry.messages.to == Some((asker, signature.sequence)),
            _ => entry.messages == Messages::default() && entry.signature.sequence == signature.sequence,
        };
        let entry = ring.entries.iter().flatten().find(is_meant).copied();
        drop(ring);
        entry.map(|entry| self.operation(&entry))
    }

    /// The operation of this turn, if it is still kept.
    #[cfg(test)]
    fn at(&self, turn: u64) -> Option<Operation> {
        let entry = self.lock().entry(turn).copied();
        entry.map(|entry| self.operation(&entry))
    }

    /// Where this rank stands now.
    pub(crate) fn position(&self) -> Position {
        let mut ring = self.lock();
        let at = |ring: &mut Ring, turn: Option<u64>| turn.and_then(|n| ring.entry(n).copied());
        let (running, finished) = (ring.running, ring.finished);
        let last = ring.running_turns().max().filter(|last| running.is_some_and(|oldest| oldest < *last));
        let (pending, finished, newest) =
            (at(&mut ring, running), at(&mut ring, finished), at(&mut ring, last));
        let waits = |entry: &&Entry| entry.started.is_none() && entry.ended.is_none();
        let queued = ring.entries.iter().flatten().filter(waits).count();
        drop(ring);
        Position {
            finished: finished.map(|entry| self.operation(&entry)),
            pending: pending.map(|entry| self.operation(&entry)),
            newest: newest.map(|entry| self.operation(&entry)),
            queued: queued as u64,
        }
    }

    /// Seconds since 1970 at a moment after this recorder was made.
    pub(crate) fn seconds(&self, at: Instant) -> f64 {
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (since(self.epoch) + at.saturating_duration_since(self.start)).as_secs_f64()
    }

    fn operation(&self, entry: &Entry) -> Operation {
        let state = match (entry.started, entry.ended) {
            (_, Some(_)) if entry.failed => State::Failed,
            (_, Some(_)) => State::Done,
            (Some(_), None) => State::Running,
            (None, None) => State::Queued,
        };
        let between = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let until = entry.started.or(entry.ended).unwrap_or_else(Instant::now);
        Operation {
            signature: entry.signature,
            to: entry.messages.to.map(|(rank, _)| rank),
            from: entry.messages.from.map(|(rank, _)| rank),
            state,
            called_at: entry.site.line(),
            purpose: entry.site.purpose(),
            enqueued_at: self.seconds(entry.enqueued),
            started_at: entry.started.map(|at| self.seconds(at)),
            ended_at: entry.ended.map(|at| self.seconds(at)),
            queued_seconds: between(entry.enqueued, until),
            run_seconds: entry
                .started
                .map(|started| between(started, entry.ended.unwrap_or_else(Instant::now))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// The entry of this turn, if it is still kept. Looks from the newest on, behind which only what waits is.
    fn entry(&mut self, turn: u64) -> Option<&mut Entry> {
        let (newer, older) = self.entries.split_at_mut((self.total % CAPACITY as u64) as usize);
        let newest_first = newer.iter_mut().rev().chain(older.iter_mut().rev());
        newest_first.flatten().find(|entry| entry.turn == turn)
    }

    /// The turns of the operations that have started and not ended, among the newest ones.
    fn running_turns(&self) -> impl Iterator<Item = u64> {
        let newest = (1..=MOST_IN_FLIGHT.min(self.total)).map(|back| (self.total - back) % CAPACITY as u64);
        let entries = newest.filter_map(|at| self.entries[at as usize]);
        entries.filter(|entry| entry.started.is_some() && entry.ended.is_none()).map(|entry| entry.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{DType, ReduceOp};

    fn signature(sequence: u64) -> Signature {
        let op = Some(ReduceOp::Sum);
        Signature { sequence, kind: OpKind::AllReduce, dtype: DType::F32, op, root: 0, bytes: 4 * sequence }
    }

    fn enqueue(recorder: &Recorder, turn: u64, at: Instant) {
        recorder.enqueue(turn, signature(turn), Messages::default(), CallSite::here(), at);
    }

    fn run(recorder: &Recorder, sequence: u64, failed: bool) {
        let now = Instant::now();
        enqueue(recorder, sequence, now);
        recorder.start(sequence, now);
        recorder.end(sequence, now, failed);
    }

    #[test]
    fn the_last_thousand_operations_are_kept_in_order() {
        let recorder = Recorder::new();
        for sequence in 1..=2345 {
            run(&recorder, sequence, false);
        }
        let (operations, total) = recorder.operations();
        assert_eq!(total, 2345);
        let kept: Vec<u64> = operations.iter().map(|operation| operation.signature.sequence).collect();
        assert_eq!(kept, (1346..=2345).collect::<Vec<_>>());
        assert!(operations.iter().all(|operation| operation.state == State::Done));
        assert!(recorder.at(1345).is_none());
        assert_eq!(recorder.at(1346).unwrap().signature.bytes, 4 * 1346);
    }

    #[test]
    fn the_end_of_an_operation_leaves_a_later_one_that_runs_on_the_device() {
        let (recorder, now) = (Recorder::new(), Instant::now());
        for turn in 1..=3 {
            enqueue(&recorder, turn, now);
            recorder.start(turn, now);
        }
        let pending = || recorder.position().pending.map(|operation| operation.signature.sequence);
        assert_eq!(pending(), Some(1));
        recorder.end(1, now, false);
        assert_eq!(pending(), Some(2));
        recorder.end(3, now, false);
        assert_eq!(pending(), Some(2));
        recorder.end(2, now, false);
        assert_eq!(pending(), None);
        assert_eq!(recorder.position().finished.unwrap().signature.sequence, 3);
    }

    #[test]
    fn a_rank_knows_what_it_finished_what_it_waits_in_and_what_waits_behind() {
        let recorder = Recorder::new();
        assert_eq!(recorder.position(), Position::default());
        run(&recorder, 1, false);
        let now = Instant::now();
        for turn in 2..=4 {
            enqueue(&recorder, turn, now);
        }
        recorder.start(2, now + Duration::from_millis(5));
        let position = recorder.position();
        assert_eq!(position.finished.unwrap().signature.sequence, 1);
        let pending = position.pending.unwrap();
        assert_eq!((pending.signature.sequence, pending.state), (2, State::Running));
        assert!((pending.queued_seconds - 0.005).abs() < 1e-9, "{pending:?}");
        assert!(pending.called_at.contains("recorder.rs:"), "{pending:?}");
        assert_eq!(position.queued, 2);
        recorder.end(2, Instant::now(), true);
        let position = recorder.position();
        assert_eq!((position.finished.unwrap().signature.sequence, position.pending), (1, None));
        assert_eq!(recorder.at(2).unwrap().state, State::Failed);
        assert_eq!(recorder.at(3).unwrap().state, State::Queued);
    }

    #[test]
    fn what_another_rank_asks_about_is_found_by_number_messages_by_their_senders() {
        let recorder = Recorder::new();
        let message = Signature { kind: OpKind::Message, op: None, ..signature(1) };
        run(&recorder, 1, false);
        let messages = Messages { to: Some((3, 7)), from: Some((2, 9)) };
        recorder.enqueue(2, message, messages, CallSite::here(), Instant::now());
        assert_eq!(recorder.find(signature(1), 3).unwrap().signature, signature(1));
        let sent = Signature { sequence: 7, ..message };
        assert_eq!(recorder.find(sent, 3).unwrap().to, Some(3));
        assert!(recorder.find(sent, 2).is_none() && recorder.find(signature(2), 3).is_none());
    }

    #[test]
    fn times_are_seconds_since_1970_in_the_order_of_the_events() {
        let recorder = Recorder::new();
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        run(&recorder, 1, false);
        let operation = recorder.at(1).unwrap();
        let (started, ended) = (operation.started_at.unwrap(), operation.ended_at.unwrap());
        assert!((operation.enqueued_at - before).abs() < 1.0, "{operation:?}");
        assert!(operation.enqueued_at <= started && started <= ended, "{operation:?}");
    }

    #[test]
    fn an_end_of_an_operation_that_is_no_longer_kept_changes_no_other() {
        let recorder = Recorder::new();
        enqueue(&recorder, 1, Instant::now());
        (2..=1 + CAPACITY as u64).for_each(|turn| run(&recorder, turn, false));
        recorder.start(1, Instant::now());
        recorder.end(1, Instant::now(), true);
        assert!(recorder.at(1).is_none());
        assert!(recorder.operations().0.iter().all(|operation| operation.state == State::Done));
    }

    #[test]
    fn places_that_nobody_uses_are_no_operations_and_cost_none() {
        let recorder = Recorder::new();
        (0..1200).for_each(|job| run(&recorder, 1 + 2 * job, false));
        let (operations, total) = recorder.operations();
        assert_eq!((operations.len(), total), (CAPACITY, 1200));
        assert_eq!(operations[0].signature.sequence, 1 + 2 * 200);
    }

    /// What one operation costs, clocks included. Printed rather than asserted: a busy machine is no failure.
    /// `cargo test --release --lib one_operation_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn one_operation_costs() {
        let recorder = Recorder::new();
        const COUNT: u64 = 1_000_000;
        for round in 0..5 {
            let start = Instant::now();
            for sequence in 1..=COUNT {
                let enqueued = Instant::now();
                enqueue(&recorder, round * COUNT + sequence, enqueued);
                recorder.start(round * COUNT + sequence, Instant::now());
                recorder.end(round * COUNT + sequence, Instant::now(), false);
            }
            println!("{:.1} ns per operation", start.elapsed().as_nanos() as f64 / COUNT as f64);
        }
    }
}
