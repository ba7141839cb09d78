//! The watchdog: what a rank tells about itself, and what it makes of a failure before the others are told.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    flight,
    record::{Answer, FLIGHT_RECORD_VERSION, FlightRecord, Operation, RankStatus, RecordedFailure},
    recorder::{Position, Recorder},
};
use crate::{
    deadline::Deadline,
    failure::{CallSites, Failure},
    rendezvous::{flight_record_folder, host_name},
    transport::{MAX_ACCOUNT_BYTES, OpKind, Signature, Witness, control::Control},
};

/// How long the answers of the others may take. A rank that is alive answers in milliseconds, whatever it computes.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long a call may stay in its transport after the group has ended.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Keeps the record of one group on one rank.
#[derive(Debug)]
pub(super) struct Watchdog {
    pub(super) name: String,
    rank: usize,
    world_size: usize,
    /// What carries the group's operations.
    transport: &'static str,
    pub(super) recorder: Recorder,
    folder: Option<PathBuf>,
    written: AtomicBool,
    /// Whether another rank's end of the group has been heard of: each of the others may tell it.
    heard: AtomicBool,
    /// How the ranks stood when they were last asked.
    ranks: Mutex<Vec<RankStatus>>,
    /// Itself, for the threads that it starts.
    this: std::sync::Weak<Self>,
}

/// What a rank sends when it is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Account {
    answer: Answer,
    about: Option<Operation>,
}

impl Watchdog {
    pub(super) fn new(name: String, rank: usize, world_size: usize, transport: &'static str) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            name,
            rank,
            world_size,
            transport,
            recorder: Recorder::new(),
            folder: flight_record_folder(),
            written: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            ranks: Mutex::default(),
            this: this.clone(),
        })
    }

    /// The record as it is now.
    pub(super) fn record(&self, failure: Option<RecordedFailure>) -> FlightRecord {
        let (operations, total_operations) = self.recorder.operations();
        FlightRecord {
            version: FLIGHT_RECORD_VERSION,
            group: self.name.clone(),
            rank: self.rank,
            world_size: self.world_size,
            transport: self.transport.to_owned(),
            host: host_name(),
            process_id: std::process::id(),
            written_at: self.recorder.seconds(Instant::now()),
            failure,
            ranks: self.ranks().clone(),
            total_operations,
            operations,
        }
    }

    /// Writes the record to the folder that the environment names, the first time, and within a bounded time.
    pub(super) fn write(&self, text: &str, cause: &Failure) {
        let Some(folder) = self.folder.clone() else { return };
        if !self.written.swap(true, Ordering::SeqCst) {
            let failure = RecordedFailure { text: text.to_owned(), cause: cause.clone() };
            flight::write(folder, self.record(Some(failure)));
        }
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<RankStatus>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> Answer {
        let Position { finished, pending, newest, queued } = self.recorder.position();
        let now = self.recorder.seconds(Instant::now());
        let ended_at = finished.as_ref().and_then(|operation| operation.ended_at);
        Answer { finished_seconds_ago: ended_at.map(|at| now - at), finished, pending, newest, queued }
    }

    /// Asks every rank how it stands.
    fn ask_all(&self, control: &Control) -> Vec<RankStatus> {
        let others: Vec<usize> = (0..self.world_size).filter(|rank| *rank != self.rank).collect();
        let mut answers = control.ask(&others, None, ANSWER_LIMIT).into_iter();
        let status = |rank| {
            let answer = match rank == self.rank {
                true => Some(self.answer()),
                false => answers.next().flatten().and_then(|account| read(&account)).map(|it| it.answer),
            };
            RankStatus { rank, answer }
        };
        (0..self.world_size).map(status).collect()
    }

    /// A missed deadline of an operation that is under way: who is missing is known best from what the ranks say.
    fn examine_deadline(&self, deadline: Missed, pending: Option<Operation>, control: &Control) -> Missed {
        let ranks = self.ask_all(control);
        let sequence = pending.as_ref().map(|it| it.signature).filter(|it| it.kind != OpKind::Message);
        let deadline = deadline.told(&ranks, sequence.map(|signature| signature.sequence));
        if reports(&ranks, self.rank, sequence, deadline.limit) {
            log::error!("{}", self.report(pending.as_ref(), &deadline, &ranks));
        }
        *self.ranks() = ranks;
        deadline
    }

    fn report(&self, pending: Option<&Operation>, deadline: &Missed, ranks: &[RankStatus]) -> String {
        let operation = pending.map_or_else(|| "an operation".to_owned(), ToString::to_string);
        let mut lines = vec![format!(
            "group `{}`, rank {} of {}: {operation} did not end within {:.1?}; missing: {}; the ranks stand so:",
            self.name,
            self.rank,
            self.world_size,
            deadline.limit,
            deadline.missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        )];
        lines.extend(ranks.iter().map(|rank| format!("  {rank}")));
        lines.join("\n")
    }

    /// Writes the record of a group that another rank has ended. A call that is under way returns the failure in a moment
    /// and writes it, with the end of the call; one that stays in its transport is a fault of the transport, and is told.
    fn see_off(&self, failure: &Failure) {
        let deadline = Deadline::after(LEAVE_LIMIT);
        if let Some(pending) = self.recorder.position().pending {
            while self.is_in(&pending) && !deadline.expired() {
                std::thread::sleep(POLL);
            }
            if self.is_in(&pending) {
                let (group, rank) = (&self.name, self.rank);
                log::error!(
                    "group `{group}`, rank {rank}: still in {pending} although the group has ended: {failure}"
                );
            }
            std::thread::sleep(POLL);
        }
        self.write(&failure.to_string(), failure);
    }

    /// The operation that the host is in: nothing that is called later starts before its end.
    fn host_operation(&self) -> Option<Operation> {
        let Position { pending, newest, .. } = self.recorder.position();
        newest.or(pending)
    }

    fn is_in(&self, operation: &Operation) -> bool {
        self.recorder.position().pending.is_some_and(|pending| pending.enqueued_at == operation.enqueued_at)
    }
}

impl Witness for Watchdog {
    fn account(&self, asker: usize, about: Option<Signature>) -> Vec<u8> {
        let about = about.and_then(|signature| self.recorder.find(signature, asker));
        let account = serde_json::to_vec(&Account { answer: self.answer(), about }).unwrap_or_default();
        if account.len() > MAX_ACCOUNT_BYTES { Vec::new() } else { account }
    }

    fn examine(&self, failure: Failure, control: &Control) -> Failure {
        match failure {
            Failure::Deadline { missing, last, limit } => {
                let missed = Missed { missing, last, limit };
                let Missed { missing, last, limit } =
                    self.examine_deadline(missed, self.host_operation(), control);
                Failure::Deadline { missing, last, limit }
            }
            // NCCL does not know who is missing, if anyone is. Of what runs the oldest is the first to be late.
            Failure::Stalled { operation, limit } => {
                let missed = Missed { missing: Vec::new(), last: Vec::new(), limit };
                let oldest = self.recorder.position().pending;
                let Missed { missing, last, limit } = self.examine_deadline(missed, oldest.clone(), control);
                if !missing.is_empty() {
                    return Failure::Deadline { missing, last, limit };
                }
                let differing = oldest.and_then(|own| differing(self.rank, &own, &self.ranks()));
                differing.unwrap_or(Failure::Stalled { operation, limit })
            }
            Failure::Mismatch { rank, call, peer, peer_call, .. } => {
                let about = control.ask(&[peer], Some(peer_call), ANSWER_LIMIT).pop().flatten();
                let about = about.and_then(|account| read(&account)?.about);
                let own = self.host_operation();
                let site = |operation: Option<Operation>| operation.map(|operation| operation.site());
                let sites = Some(Box::new(CallSites { call: site(own), peer_call: site(about) }));
                Failure::Mismatch { rank, call, peer, peer_call, sites }
            }
            failure => failure,
        }
    }

    fn hear(&self, failure: &Failure) {
        if self.heard.swap(true, Ordering::SeqCst) {
            return;
        }
        let (Some(this), failure) = (self.this.upgrade(), failure.clone()) else { return };
        let watch = move || this.see_off(&failure);
        // Without a thread nothing is written here; the rank's own next call tries again.
        let _ = std::thread::Builder::new().name("burn-nccl-record".into()).spawn(watch);
    }
}

/// The mismatch where a rank is in another operation at the same place in the order: NCCL compares nothing, and hangs.
fn differing(rank: usize, own: &Operation, ranks: &[RankStatus]) -> Option<Failure> {
    let pending = |status: &RankStatus| Some((status.rank, status.answer.as_ref()?.pending.clone()?));
    let (peer, other) = ranks.iter().filter_map(pending).find(|(_, other)| {
        other.signature.sequence == own.signature.sequence && other.signature != own.signature
    })?;
    let sites = CallSites { call: Some(own.site()), peer_call: Some(other.site()) };
    let (call, peer_call) = (own.signature, other.signature);
    Some(Failure::Mismatch { rank, call, peer, peer_call, sites: Some(Box::new(sites)) })
}

fn read(account: &[u8]) -> Option<Account> {
    serde_json::from_slice(account).ok()
}

/// The parts of [`Failure::Deadline`].
#[derive(Clone, Debug, PartialEq)]
struct Missed {
    missing: Vec<usize>,
    last: Vec<Option<Signature>>,
    limit: Duration,
}

impl Missed {
    /// The same after the ranks have told how they stand. Missing are those that say that they have not come to the
    /// collective `sequence`, and those that the transport misses and that do not say that they have. Where that leaves
    /// nobody the silent ones are missing, and where all have come the transport knows better who is behind.
    fn told(mut self, ranks: &[RankStatus], sequence: Option<u64>) -> Self {
        let come = |status: &RankStatus| {
            status.answer.as_ref().map(|answer| sequence.is_none_or(|sequence| has_come(answer, sequence)))
        };
        let all = |is_meant: &dyn Fn(&RankStatus) -> bool| -> Vec<usize> {
            ranks.iter().filter(|status| is_meant(status)).map(|status| status.rank).collect()
        };
        let missing = match sequence {
            // Whoever the message is from or for may itself wait for a rank that answers nobody.
            None => {
                let waits = |rank: &usize| {
                    let answer = ranks.get(*rank).and_then(|status| status.answer.as_ref());
                    answer.is_some_and(|answer| answer.pending.is_some())
                };
                if self.missing.iter().all(waits) {
                    all(&|status| status.answer.is_none())
                } else {
                    Vec::new()
                }
            }
            Some(_) => {
                let absent = all(&|status| match come(status) {
                    Some(come) => !come,
                    None => self.missing.contains(&status.rank),
                });
                if absent.is_empty() { all(&|status| come(status).is_none()) } else { absent }
            }
        };
        let known = |rank: usize| {
            let at = self.missing.iter().position(|other| *other == rank)?;
            self.last.get(at).copied().flatten()
        };
        let seen = |rank: usize| {
            let answer = ranks.get(rank).and_then(|status| status.answer.as_ref());
            answer.and_then(newest).or_else(|| known(rank))
        };
        let missing = if missing.is_empty() { self.missing.clone() } else { missing };
        let last = missing.iter().map(|rank| seen(*rank)).collect();
        (self.missing, self.last) = (missing, last);
        self
    }
}

/// The last operation that a rank has come to. One that ended may be newer than all that run: what is on a GPU does not
/// hold up the host.
fn newest(answer: &Answer) -> Option<Signature> {
    let all = [&answer.finished, &answer.pending, &answer.newest].into_iter().flatten();
    all.map(|operation| operation.signature).max_by_key(|signature| signature.sequence)
}

fn has_come(answer: &Answer, sequence: u64) -> bool {
    newest(answer).is_some_and(|signature| signature.sequence >= sequence)
}

/// Whether `rank` is the one to report: the lowest of those that wait in the same collective and whose deadline has
/// passed too, so that a missed deadline is told once and not by every rank.
fn reports(ranks: &[RankStatus], rank: usize, pending: Option<Signature>, limit: Duration) -> bool {
    let reports_itself = |status: &RankStatus| {
        let in_it = |other: &Operation| {
            Some(other.signature) == pending && other.run_seconds >= Some(limit.as_secs_f64())
        };
        let answer = status.answer.as_ref();
        answer.is_some_and(|answer| [&answer.pending, &answer.newest].into_iter().flatten().any(in_it))
    };
    pending.is_none() || !ranks.iter().filter(|status| status.rank < rank).any(reports_itself)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        group::record::State,
        transport::{DType, ReduceOp},
    };

    fn operation(sequence: u64) -> Operation {
        let op = Some(ReduceOp::Sum);
        let signature =
            Signature { sequence, kind: OpKind::AllReduce, dtype: DType::F32, op, root: 0, bytes: 4 };
        Operation {
            signature,
            to: None,
            from: None,
            state: State::Running,
            called_at: "src/train.rs:1:1".into(),
            purpose: None,
            enqueued_at: 0.0,
            started_at: None,
            ended_at: None,
            queued_seconds: 0.0,
            run_seconds: None,
        }
    }

    /// A rank that has finished one operation and is in another.
    fn status(rank: usize, finished: u64, pending: Option<u64>) -> RankStatus {
        let answer = Answer {
            finished: Some(operation(finished)),
            finished_seconds_ago: Some(1.0),
            pending: pending.map(operation),
            newest: None,
            queued: 0,
        };
        RankStatus { rank, answer: Some(answer) }
    }

    fn missed(missing: Vec<usize>, last: Vec<Option<Signature>>) -> Missed {
        Missed { missing, last, limit: Duration::from_secs(2) }
    }

    #[test]
    fn missing_are_those_that_are_silent_or_have_not_come_and_not_those_that_wait_or_are_ahead() {
        let silent = RankStatus { rank: 3, answer: None };
        let ranks =
            [status(0, 4, Some(5)), status(1, 2, None), status(2, 5, None), silent, status(4, 4, Some(5))];
        let seen_before = operation(4).signature;
        let told = missed(vec![3, 4], vec![Some(seen_before), None]).told(&ranks, Some(5));
        assert_eq!(told, missed(vec![1, 3], vec![Some(operation(2).signature), Some(seen_before)]));
    }

    #[test]
    fn a_slow_answer_does_not_make_a_rank_missing_that_the_transport_has_seen() {
        let silent = |rank| RankStatus { rank, answer: None };
        let ranks = [status(0, 4, Some(5)), silent(1), silent(2)];
        assert_eq!(missed(vec![2], vec![None]).told(&ranks, Some(5)).missing, [2]);
        let ranks = [status(0, 4, Some(5)), status(1, 4, Some(5)), silent(2)];
        assert_eq!(missed(vec![1], vec![None]).told(&ranks, Some(5)).missing, [2]);
    }

    #[test]
    fn a_rank_has_come_as_far_as_the_newest_of_what_it_runs_and_has_ended() {
        let mut on_gpu = status(0, 4, Some(5));
        on_gpu.answer.as_mut().unwrap().newest = Some(operation(7));
        // Its GPU is still busy with an older one.
        let past = status(1, 7, Some(5));
        let ranks = [on_gpu, past, status(2, 4, Some(5)), status(3, 7, None)];
        assert_eq!(missed(vec![], vec![]).told(&ranks, Some(7)).missing, [2]);
        assert_eq!(missed(vec![], vec![]).told(&ranks, Some(5)).missing, [0; 0]);
    }

    #[test]
    fn where_all_have_come_or_a_message_is_late_the_transports_word_stands() {
        let ranks = [status(0, 4, Some(5)), status(1, 4, Some(5))];
        let told = missed(vec![1], vec![None]).told(&ranks, Some(5));
        assert_eq!(told, missed(vec![1], vec![Some(operation(5).signature)]));
        let told = missed(vec![1], vec![None]).told(&[status(0, 4, None), status(1, 3, None)], None);
        assert_eq!(told.missing, [1]);
    }

    #[test]
    fn a_message_that_is_late_because_its_rank_waits_for_a_silent_one_names_the_silent_one() {
        let silent = RankStatus { rank: 0, answer: None };
        let waiting = [silent.clone(), status(1, 4, Some(5)), status(2, 4, Some(5))];
        assert_eq!(missed(vec![1], vec![None]).told(&waiting, None).missing, [0]);
        let busy = [silent, status(1, 4, None), status(2, 4, Some(5))];
        assert_eq!(missed(vec![1], vec![None]).told(&busy, None).missing, [1], "it computes");
    }

    #[test]
    fn ranks_that_wait_in_different_operations_at_one_place_are_a_mismatch_and_not_a_stall() {
        let own = operation(5);
        let mut ranks = [status(0, 4, Some(5)), status(1, 4, Some(5)), status(2, 4, Some(6))];
        assert_eq!(differing(0, &own, &ranks), None, "the same, or at another place");
        let Some(Answer { pending: Some(other), .. }) = &mut ranks[1].answer else { unreachable!() };
        other.signature.bytes = 8;
        let Some(Failure::Mismatch { rank: 0, call, peer: 1, peer_call, sites: Some(_) }) =
            differing(0, &own, &ranks)
        else {
            panic!("no mismatch")
        };
        assert_eq!((call.bytes, peer_call.bytes), (4, 8));
    }

    #[test]
    fn the_lowest_of_the_ranks_whose_deadline_has_passed_reports() {
        let mut ranks = [status(0, 2, None), status(1, 4, Some(5)), status(2, 4, Some(5))];
        let (pending, limit) = (Some(operation(5).signature), Duration::from_secs(2));
        assert!(reports(&ranks, 2, pending, limit), "rank 1 still waits, and will be told before it asks");
        let Some(Answer { pending: Some(waiting), .. }) = &mut ranks[1].answer else { unreachable!() };
        waiting.run_seconds = Some(2.0);
        assert!(reports(&ranks, 1, pending, limit) && !reports(&ranks, 2, pending, limit));
        assert!(
            reports(&ranks, 2, None, limit),
            "a message has two ranks, and each may be the only one to know"
        );
    }

    #[test]
    fn what_runs_on_a_gpu_and_what_runs_on_the_host_do_not_hide_each_other() {
        let watchdog = Watchdog::new("world".into(), 0, 2, "tcp");
        let (recorder, now) = (&watchdog.recorder, Instant::now());
        let start = |turn| {
            let site = crate::site::CallSite::here();
            recorder.enqueue(turn, operation(turn).signature, Default::default(), site, now);
            recorder.start(turn, now);
        };
        let stand = || {
            let Answer { finished, pending, newest, .. } = watchdog.answer();
            [finished, pending, newest].map(|operation| operation.map(|it| it.signature.sequence))
        };
        start(1);
        start(2);
        start(3);
        assert_eq!(stand(), [None, Some(1), Some(3)]);
        recorder.end(3, now, false);
        assert_eq!(stand(), [Some(3), Some(1), Some(2)], "the host's has ended");
        start(4);
        recorder.end(1, now, false);
        assert_eq!(stand(), [Some(3), Some(2), Some(4)], "one of the GPU's has ended");
        recorder.end(4, now, true);
        assert_eq!(stand(), [Some(3), Some(2), None]);
        recorder.end(2, now, false);
        assert_eq!(stand(), [Some(3), None, None]);
    }

    #[test]
    fn a_rank_that_computes_says_what_it_finished_and_when() {
        let watchdog = Watchdog::new("world".into(), 0, 2, "tcp");
        let (signature, site) = (operation(41).signature, crate::site::CallSite::here());
        let start = Instant::now();
        watchdog.recorder.enqueue(1, signature, Default::default(), site, start);
        watchdog.recorder.start(1, start);
        watchdog.recorder.end(1, start, false);
        let account = read(&watchdog.account(1, Some(signature))).unwrap();
        assert_eq!(account.about.unwrap().signature, signature);
        let line = account.answer.to_string();
        assert!(line.starts_with("no collective pending; last finished all_reduce #41"), "{line}");
        assert!(line.contains("watchdog.rs:") && line.ends_with(" s ago"), "{line}");
    }
}
